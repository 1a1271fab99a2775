// Ranks with CUDA devices, real or simulated, as the chapters' suites run them.
// defines: DevicePath, to_string(), launch_on_devices(), has_devices()
#pragma once

#include <functional>
#include <string_view>

#include "common/comm/launch.h"
#include "common/ops/ops.h"

namespace escalera {

/// How tensors travel: NCCL between a device each, or through host memory from one device that all ranks share.
enum class DevicePath { nccl, staged };
/// "nccl" or "staged".
std::string_view to_string(DevicePath path);

/// Whether this machine has the devices for `ranks` ranks on this path.
bool has_devices(DevicePath path, int ranks);

/// Runs `body` on `ranks` threads, each with the operations of its device, and with a communicator `tensors` of the same ranks as
/// `world` for their tensors. Returns the exit code.
int launch_on_devices(int ranks, DevicePath path,
                      const std::function<void(Communicator& world, Communicator& tensors, Ops& ops)>& body);

}  // namespace escalera
