// The runtime API: devices, functions, errors and versions.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/runtime/device.h"

using namespace simulated_cuda;

namespace {

constexpr int compute_capability_major = 8, compute_capability_minor = 0;
constexpr int threads_per_multiprocessor = 2048, registers_per_multiprocessor = 65536;
constexpr std::size_t reserved_shared = 1024;  // per block, by the system

}  // namespace

extern "C" {

// ---- Devices ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return *count > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (!find_device(device)) return note(settings().devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice);
  set_current_ordinal(device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (!current_device()) return cudaErrorNoDevice;
  *device = current_ordinal();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  synchronize(*device);
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!find_device(device)) return note(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "simulated CUDA");
  properties->totalGlobalMem = settings().device_memory;
  properties->sharedMemPerBlock = shared_without_opt_in;
  properties->sharedMemPerBlockOptin = shared_per_block;
  properties->sharedMemPerMultiprocessor = shared_per_multiprocessor;
  properties->reservedSharedMemPerBlock = reserved_shared;
  properties->regsPerBlock = registers_per_multiprocessor;
  properties->regsPerMultiprocessor = registers_per_multiprocessor;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->multiProcessorCount = multiprocessors;
  properties->major = compute_capability_major;
  properties->minor = compute_capability_minor;
  properties->l2CacheSize = 40 << 20;
  properties->memoryBusWidth = 5120;
  properties->unifiedAddressing = 1;
  properties->concurrentKernels = 1;
  properties->asyncEngineCount = 3;
  properties->pciDeviceID = device;
  properties->uuid.bytes[0] = static_cast<char>(device + 1);  // no two devices are the same
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!find_device(device)) return note(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = threads_per_multiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = 32;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(shared_without_opt_in);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(shared_per_block);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(shared_per_multiprocessor);
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(reserved_shared);
      break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = registers_per_multiprocessor;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = compute_capability_major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = compute_capability_minor;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 40 << 20;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    case cudaDevAttrClockRate:
      *value = 1410000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 1215000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 5120;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 0;
      break;
    default:
      fail("cudaDeviceGetAttribute: attribute %d is not simulated", static_cast<int>(attribute));
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (!find_device(device)) return note(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02X:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

// ---- Functions ----

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) > shared_per_block) return note(cudaErrorInvalidValue);
  device->set_shared_limit(function, static_cast<std::size_t>(value));
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(device->shared_limit(function));
  attributes->binaryVersion = attributes->ptxVersion = 10 * compute_capability_major + compute_capability_minor;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   std::size_t shared, unsigned) {
  Device* device = current_device();
  if (!device) return cudaErrorNoDevice;
  if (threads <= 0 || threads > 1024) return note(cudaErrorInvalidValue);
  *blocks = 0;
  if (shared > device->shared_limit(function)) return cudaSuccess;
  const std::size_t by_threads = static_cast<std::size_t>(threads_per_multiprocessor / ((threads + 31) / 32 * 32));
  const std::size_t by_shared = shared_per_multiprocessor / (shared + reserved_shared);
  *blocks = static_cast<int>(std::min<std::size_t>({by_threads, by_shared, 32}));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

// ---- Errors and versions ----

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidPitchValue:
      return "cudaErrorInvalidPitchValue";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
    default:
      return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidPitchValue:
      return "invalid pitch argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    default:
      return "unrecognized error code";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

}  // extern "C"
