// Kernel launches: arguments are copied and looked at, then the kernel is queued.
// defines: cudaLaunchKernelEx()
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <simulated_cuda/execution.h>

namespace simulated_cuda {

/// A launch while its arguments are looked at. The constructor checks stream, device and sizes.
class Launch {
 public:
  Launch(const cudaLaunchConfig_t& config, const void* kernel);

  /// A kernel's parameter: a pointer has to lie in live memory of the stream's device and loses its tag. The same for what
  /// looks like a pointer inside of a struct.
  template <class T>
  void admit(T& argument) {
    static_assert(std::is_trivially_copyable_v<T>, "kernel parameters are copied byte by byte");
    ++arguments_;
    if constexpr (std::is_pointer_v<T>) {
      if (argument) argument = reinterpret_cast<T>(admit_pointer(reinterpret_cast<std::uintptr_t>(argument)));
    } else if constexpr (std::is_class_v<T> && sizeof(T) >= sizeof(void*) && alignof(T) >= alignof(void*)) {
      __builtin_clear_padding(&argument);  // leftovers there may look like anything
      admit_object(&argument, sizeof(T));
    }
  }

  /// Queues the kernel: every thread calls run(arguments).
  cudaError_t submit(void (*run)(const void* arguments), std::shared_ptr<const void> arguments);

 private:
  std::uintptr_t admit_pointer(std::uintptr_t pointer);
  void admit_object(void* object, std::size_t bytes);

  cudaLaunchConfig_t config_;
  const void* kernel_;
  cudaError_t error_ = cudaSuccess;
  int arguments_ = 0;
};

}  // namespace simulated_cuda

/// As the toolkit's function of this name, whose place it takes.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_cv_t<Parameters>...> parameters;
  };
  const auto call = std::make_shared<Call>(Call{
      kernel, std::tuple<std::remove_cv_t<Parameters>...>(static_cast<Parameters>(std::forward<Arguments>(arguments))...)});
  simulated_cuda::Launch launch(*config, reinterpret_cast<const void*>(kernel));
  std::apply([&](auto&... parameter) { (launch.admit(parameter), ...); }, call->parameters);
  return launch.submit(
      [](const void* data) {
        const Call& every_thread = *static_cast<const Call*>(data);
        std::apply(every_thread.kernel, every_thread.parameters);
      },
      call);
}
