// Files that are either the old one or the new one, never half of it.
// defines: AtomicFile, write_file(), check_writable()
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "common/core/dtype.h"

namespace escalera {

/// A file that appears under its name only when it is complete. Bytes go to `PATH.PID.partial` in the same
/// directory; commit() flushes them to the disk and renames: whoever dies before leaves an older file of that
/// name as it was. A symbolic link is followed and stays. A device or pipe (/dev/null) is written directly;
/// it cannot be replaced.
class AtomicFile {
 public:
  /// Creates the temporary file. Throws Error, naming `path`, if that is impossible: a missing or read-only
  /// directory, `path` itself a directory.
  explicit AtomicFile(const std::string& path);
  /// Removes the temporary file unless commit() has been called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// As it was given.
  const std::string& path() const { return path_; }
  /// Writes `bytes` at `offset` of the file. Parts may come in any order. Throws Error, naming path and
  /// reason, if they cannot all be written: the disk is full, say.
  void write(std::span<const std::byte> bytes, Index offset);
  /// Makes the file visible, complete and on the disk. Throws Error, naming path and reason, if that fails;
  /// the older file is then still there. To be called once, last.
  void commit();

 private:
  [[noreturn]] void fail_to(const char* action) const;  // names path_ and errno
  void close_file() noexcept;

  std::string path_;       // as the caller gave it
  std::string target_;     // with symbolic links resolved
  std::string temporary_;  // "" if target_ is written directly
  int file_ = -1;
};

/// Writes a whole file in that way. Throws as AtomicFile does.
void write_file(const std::string& path, std::string_view contents);

/// Throws UsageError, naming `option` and `path`, unless AtomicFile could write `path` now; leaves nothing
/// behind. For asking before the work of which the file is the result.
void check_writable(const std::string& path, std::string_view option);

}  // namespace escalera
