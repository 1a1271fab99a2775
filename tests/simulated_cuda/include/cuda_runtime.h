// Stands before the toolkit's header of this name in the include path. It takes the toolkit's types and prototypes as they
// are and adds what only nvcc knows: threadIdx and its kin, __shared__, barriers, warp operations, kernel launches.
#pragma once
#pragma GCC system_header  // #include_next is an extension of the compiler

// The toolkit would declare threadIdx and its kin as plain constants; here each host thread has its own.
#define __DEVICE_LAUNCH_PARAMETERS_H__
// Its cudaLaunchKernelEx forgets the types of the arguments, which simulated_cuda/launch.h needs to know pointers.
#define cudaLaunchKernelEx toolkit_launch_kernel_ex
#include_next <cuda_runtime.h>
#undef cudaLaunchKernelEx

#include <simulated_cuda/atomics.h>
#include <simulated_cuda/device_math.h>
#include <simulated_cuda/execution.h>
#include <simulated_cuda/launch.h>
#include <simulated_cuda/warp.h>
