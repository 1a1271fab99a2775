#include "common/comm/nccl/nccl_check.h"

#include "common/core/error.h"

namespace escalera::cuda {

std::string last_nccl_error() {
  const char* text = ncclGetLastError(nullptr);
  return text && *text ? fmt::format("; NCCL's last words: {}", text) : std::string();
}

void throw_nccl_error(ncclResult_t code, const std::string& who, const char* expression, const char* file, int line) {
  fail("{}: {} failed at {}:{}: {}{}", who, expression, file, line, ncclGetErrorString(code), last_nccl_error());
}

}  // namespace escalera::cuda
