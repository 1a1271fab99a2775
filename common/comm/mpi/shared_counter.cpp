#include "common/comm/mpi/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace escalera {

// A futex: the kernel puts the caller to sleep if the word still has the value that it saw. Between a sleeper's count and its
// sleep, and between the new value and the look at the count, everything is sequentially consistent: either the one who
// advances sees the sleeper, or the sleeper the new value.
void SharedCounter::advance() {
  value_.fetch_add(1);
  if (sleepers_.load() > 0) syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SharedCounter::sleep(std::uint32_t seen) {
  const timespec timeout{0, 200'000'000};
  sleepers_.fetch_add(1);
  syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  sleepers_.fetch_sub(1);
  return value_.load() != seen;
}

}  // namespace escalera
