// A file as memory: the kernel pages it in, and all ranks of a host share the pages.
// defines: MappedFile
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace escalera {

/// A whole regular file, mapped read-only. Movable, not copyable; reading it from several threads is safe.
/// The file must not be shortened while it is mapped: a read past its new end kills the process (SIGBUS).
class MappedFile {
 public:
  /// Maps `path`. `reader` opens every message and says who wants the file: an option ("--data") or a format.
  /// Throws UsageError if the file is missing, a directory, not a regular file, or unreadable. An empty file
  /// has no bytes.
  MappedFile(std::string path, const std::string& reader);
  ~MappedFile();
  /// Takes over the map; what is moved from has no bytes.
  MappedFile(MappedFile&& other) noexcept;
  /// Exchanges the maps.
  MappedFile& operator=(MappedFile&& other) noexcept;

  /// As it was given.
  const std::string& path() const { return path_; }
  /// The contents, at a page boundary. They live as long as this object.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace escalera
