#include "common/comm/mpi/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "common/comm/mpi/mpi_check.h"

namespace escalera {
namespace {

constexpr const char* folder = "/dev/shm";

/// Free and total bytes of /dev/shm.
std::pair<std::size_t, std::size_t> space() {
  struct statvfs status {};
  if (statvfs(folder, &status) != 0) return {0, 0};
  return {static_cast<std::size_t>(status.f_bavail) * status.f_frsize,
          static_cast<std::size_t>(status.f_blocks) * status.f_frsize};
}

[[noreturn]] void fail_for_space(const std::string& purpose, std::size_t bytes, int error) {
  const auto [free, total] = space();
  if (error != ENOSPC)
    fail("shared memory for {} ({} KB in {}): {}", purpose, bytes / 1024, folder, std::strerror(error));
  fail(
      "{} is too small: {} KB more are needed for {}, but {} of {} KB are free. In a container, start it "
      "with more: docker run "
      "--shm-size=1g ...; elsewhere: mount -o remount,size=1g {}. Or do without shared memory, which is "
      "slower: "
      "ESCALERA_COMM_PATH=mpi",
      folder, bytes / 1024, purpose, free / 1024, total / 1024, folder);
}

/// A name that neither another job nor another container with the same /dev/shm takes at the same time.
std::string fresh_name() {
  std::random_device random;
  return fmt::format("/escalera.{}.{:08x}{:08x}", getpid(), random(), random());
}

}  // namespace

std::size_t SharedSegment::free_space() {
  return space().first;
}

SharedSegment::SharedSegment(MPI_Comm comm, std::size_t bytes, std::string purpose)
    : bytes_(bytes), purpose_(std::move(purpose)) {
  int rank = 0;
  MPI_CHECK(MPI_Comm_rank(comm, &rank));
  // The first rank makes the file, the others open it by name; then all report, and the name goes.
  std::array<char, 64> name{};
  int error = 0;
  if (rank == 0) {
    const std::string fresh = fresh_name();
    fresh.copy(name.data(), name.size() - 1);
    file_ = shm_open(name.data(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0) error = errno;
  }
  MPI_CHECK(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, comm));
  if (rank != 0) {
    file_ = shm_open(name.data(), O_RDWR | O_CLOEXEC, 0600);
    if (file_ < 0) error = errno;
  }
  if (error == 0) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) {
      error = errno;
    } else {
      data_ = static_cast<std::byte*>(mapped);
    }
  }
  int worst = 0;
  const int code = MPI_Allreduce(&error, &worst, 1, MPI_INT, MPI_MAX, comm);
  if (rank == 0) shm_unlink(name.data());
  MPI_CHECK(code);
  if (worst != 0) fail_for_space(purpose_, bytes, worst);
}

SharedSegment::~SharedSegment() {
  if (data_) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

void SharedSegment::reserve(std::size_t offset, std::size_t bytes) {
  int error = EINTR;
  while (error == EINTR)
    error = posix_fallocate(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (error != 0) fail_for_space(purpose_, bytes, error);
}

}  // namespace escalera
