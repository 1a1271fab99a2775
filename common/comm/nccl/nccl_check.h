// The one place where results of NCCL calls are looked at.
// defines: NCCL_CHECK, throw_nccl_error()
#pragma once

#include <nccl.h>

#include <string>

namespace escalera::cuda {

/// Throws Error: who called, the expression, file and line, and what NCCL says about `code` and about its last failure.
[[noreturn]] void throw_nccl_error(ncclResult_t code, const std::string& who, const char* expression, const char* file,
                                   int line);

/// NCCL's account of what went wrong last, as the end of a message.
std::string last_nccl_error();

}  // namespace escalera::cuda

/// Evaluates `call` once and throws Error, beginning with `who` (a text that names the rank), if it failed. Communicators
/// do not block here, so a call may merely have been begun (ncclInProgress): NcclLane::settle() waits for the rest.
#define NCCL_CHECK(who, call)                                                                                    \
  do {                                                                                                           \
    if (const ncclResult_t code_of_call = (call); code_of_call != ncclSuccess && code_of_call != ncclInProgress) \
      ::escalera::cuda::throw_nccl_error(code_of_call, who, #call, __FILE__, __LINE__);                          \
  } while (false)
