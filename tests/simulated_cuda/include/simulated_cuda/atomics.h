// Atomic operations of device code: real atomics, because several host threads may run kernels on one device.
// defines: atomicAdd, atomicSub, atomicMax, atomicMin, atomicExch, atomicCAS, atomicAnd, atomicOr, atomicXor
#pragma once

#include <concepts>
#include <type_traits>

namespace simulated_cuda {

template <class T>
concept AtomicWord = std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;
template <class T>
concept AtomicNumber = AtomicWord<T> || std::same_as<T, float> || std::same_as<T, double>;

/// Replaces *address by change(*address); returns what was there before.
template <class T, class Change>
T atomic_change(T* address, Change change) {
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  for (;;) {
    T next = change(old);
    if (__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

}  // namespace simulated_cuda

template <simulated_cuda::AtomicNumber T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return static_cast<T>(old + value); });
}
template <simulated_cuda::AtomicWord T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return static_cast<T>(old - value); });
}
template <simulated_cuda::AtomicWord T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return old < value ? value : old; });
}
template <simulated_cuda::AtomicWord T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return value < old ? value : old; });
}
template <simulated_cuda::AtomicNumber T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T) { return value; });
}
template <simulated_cuda::AtomicWord T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return old == compare ? value : old; });
}
template <simulated_cuda::AtomicWord T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return static_cast<T>(old & value); });
}
template <simulated_cuda::AtomicWord T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return static_cast<T>(old | value); });
}
template <simulated_cuda::AtomicWord T>
T atomicXor(T* address, std::type_identity_t<T> value) {
  return simulated_cuda::atomic_change(address, [=](T old) { return static_cast<T>(old ^ value); });
}
