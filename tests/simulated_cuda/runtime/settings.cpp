#include <simulated_cuda/settings.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <simulated_cuda/diagnose.h>

namespace simulated_cuda {
namespace {

/// The position of the variable's value among `choices`, the first of which is the default.
int choice(const char* variable, std::initializer_list<const char*> choices) {
  const char* value = std::getenv(variable);
  if (!value || !*value) return 0;
  int position = 0;
  for (const char* known : choices) {
    if (std::strcmp(value, known) == 0) return position;
    ++position;
  }
  fail("%s=%s is none of the values it may have (the first would be %s)", variable, value, *choices.begin());
}

double number(const char* variable, double otherwise, double least) {
  const char* value = std::getenv(variable);
  if (!value || !*value) return otherwise;
  char* end = nullptr;
  const double result = std::strtod(value, &end);
  if (*end || !(result >= least)) fail("%s=%s is not a number of at least %g", variable, value, least);
  return result;
}

Settings from_environment() {
  Settings result{};
  result.order = static_cast<ThreadOrder>(choice("SIMULATED_CUDA_ORDER", {"forward", "reverse", "shuffle"}));
  result.seed = static_cast<std::uint64_t>(number("SIMULATED_CUDA_SEED", 1, 0));
  result.lazy_streams = choice("SIMULATED_CUDA_STREAMS", {"eager", "lazy"}) == 1;
  result.early_copies = choice("SIMULATED_CUDA_COPIES", {"late", "early"}) == 1;
  result.devices = static_cast<int>(number("SIMULATED_CUDA_DEVICES", 8, 0));
  if (result.devices > 256) fail("SIMULATED_CUDA_DEVICES=%d: a pointer's tag has room for 256", result.devices);
  result.device_memory = static_cast<std::size_t>(number("SIMULATED_CUDA_MEMORY_MB", 16384, 1)) << 20;
  result.nccl_timeout_seconds = number("SIMULATED_CUDA_NCCL_TIMEOUT_S", 20, 0);
  if (const char* error = std::getenv("SIMULATED_CUDA_NCCL_ERROR"); error && *error) {
    if (std::sscanf(error, "%d:%d", &result.nccl_error_rank, &result.nccl_error_call) != 2) {
      fail("SIMULATED_CUDA_NCCL_ERROR=%s should be RANK:CALL", error);
    }
  }
  return result;
}

}  // namespace

Settings& settings() {
  static Settings instance = from_environment();
  return instance;
}

}  // namespace simulated_cuda
