#include "common/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/core/error.h"

namespace escalera {

MappedFile::MappedFile(std::string path, const std::string& reader) : path_(std::move(path)) {
  // O_NONBLOCK: a pipe without a writer is refused below instead of being waited for.
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail<UsageError>("{} {}: {}", reader, path_, std::strerror(errno));
  struct stat status {};
  const char* refusal = nullptr;
  if (::fstat(file, &status) != 0) {
    refusal = std::strerror(errno);
  } else if (S_ISDIR(status.st_mode)) {
    refusal = "is a directory, not a file";
  } else if (!S_ISREG(status.st_mode)) {
    refusal = "is not a regular file (a pipe or device cannot be mapped; copy it to a file first)";
  } else if (status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
      refusal = std::strerror(errno);
    } else {
      data_ = static_cast<const std::byte*>(data);
    }
  }
  // The map keeps the file alive without its descriptor.
  ::close(file);
  if (refusal != nullptr) fail<UsageError>("{} {}: {}", reader, path_, refusal);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace escalera
