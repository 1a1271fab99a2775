#include "common/comm/local_rank.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace escalera {

// Containers may share a name; the kernel they run on says whether they share a machine.
std::string host_identity() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return fmt::format("{} {}", name, boot);
}

int local_rank(Communicator& world) {
  const std::vector<std::string> hosts = world.gather_strings(host_identity());
  return static_cast<int>(std::count(hosts.begin(), hosts.begin() + world.rank(), host_identity()));
}

}  // namespace escalera
