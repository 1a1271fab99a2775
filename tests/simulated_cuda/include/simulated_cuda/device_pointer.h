// Device pointers carry a tag in their upper 16 bits, which makes them no address at all for the processor: host code that
// follows one faults at once. A launch takes the tags off the kernel's arguments.
// defines: tagged(), is_tagged(), device_of(), untagged()
#pragma once

#include <cstdint>

namespace simulated_cuda {

inline constexpr std::uintptr_t tag_mark = std::uintptr_t{0x7d} << 56;
inline constexpr std::uintptr_t address_mask = (std::uintptr_t{1} << 48) - 1;
inline constexpr int max_devices = 256;

inline std::uintptr_t bits(const volatile void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

inline bool is_tagged(const volatile void* pointer) {
  return bits(pointer) >> 56 == tag_mark >> 56;
}

/// The device whose memory a tagged pointer means.
inline int device_of(const volatile void* pointer) {
  return static_cast<int>(bits(pointer) >> 48 & 0xff);
}

template <class T>
T* tagged(T* address, int device) {
  return reinterpret_cast<T*>(bits(address) | tag_mark | static_cast<std::uintptr_t>(device) << 48);
}

/// The real address; pointers without a tag stay as they are.
template <class T>
T* untagged(T* pointer) {
  return is_tagged(pointer) ? reinterpret_cast<T*>(bits(pointer) & address_mask) : pointer;
}

}  // namespace simulated_cuda
