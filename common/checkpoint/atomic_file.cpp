#include "common/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace escalera {
namespace {

namespace fs = std::filesystem;

/// The file that `path` leads to, whether or not it exists. Without this, the rename would replace the link and leave the
/// file that it leads to as it was. Links that run in a circle end here and fail when opened.
fs::path follow_links(fs::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(path, error); ++links) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

/// Flushes a directory, and so the names in it: until then, a power cut may undo the rename. Some file
/// systems cannot; the file itself is safe by then, so that is no failure.
void flush_directory(const fs::path& directory) {
  const int handle = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return;
  ::fsync(handle);
  ::close(handle);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(follow_links(path).string()) {
  std::error_code error;
  const fs::file_status status = fs::status(target_, error);
  if (target_.empty()) {
    errno = ENOENT;
    fail_to("cannot be written");
  }
  if (fs::is_directory(status)) {
    errno = EISDIR;
    fail_to("cannot be written");
  }
  // A rename asks for the directory's permission only, and would replace a file that its owner has protected.
  if (fs::is_regular_file(status) && ::access(target_.c_str(), W_OK) != 0) fail_to("cannot be written");
  int flags = O_WRONLY | O_CLOEXEC;
  if (!fs::exists(status) || fs::is_regular_file(status)) {
    temporary_ = fmt::format("{}.{}.partial", target_, ::getpid());
    flags |= O_CREAT | O_TRUNC;
  }
  file_ = ::open((temporary_.empty() ? target_ : temporary_).c_str(), flags, 0666);
  if (file_ < 0) {
    temporary_.clear();
    fail_to("cannot be written");
  }
}

AtomicFile::~AtomicFile() {
  close_file();
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes, Index offset) {
  while (!bytes.empty()) {
    ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == ESPIPE) written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to("cannot be written");
    if (written == 0) {
      errno = ENOSPC;
      fail_to("cannot be written");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

void AtomicFile::commit() {
  // Some file systems find out only now that the disk is full. Devices and pipes have nothing to flush
  // (EINVAL, EROFS).
  if (!temporary_.empty() && ::fsync(file_) != 0) fail_to("cannot be flushed to the disk");
  const int file = std::exchange(file_, -1);
  if (::close(file) != 0) fail_to("cannot be closed");
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_to("cannot be put in place");
  temporary_.clear();
  const fs::path directory = fs::path(target_).parent_path();
  flush_directory(directory.empty() ? "." : directory);
}

void AtomicFile::fail_to(const char* action) const {
  fail("{}: {}: {}", path_, action, std::strerror(errno));
}

void AtomicFile::close_file() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void write_file(const std::string& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(contents)), 0);
  file.commit();
}

void check_writable(const std::string& path, std::string_view option) {
  try {
    AtomicFile file(path);
  } catch (const Error& error) {
    fail<UsageError>("{} {}", option, error.what());
  }
}

}  // namespace escalera
