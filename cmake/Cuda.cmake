# The CUDA backend's compiler and libraries.
#
# ESCALERA_CUDA=nvcc compiles the kernels for GPUs. ESCALERA_CUDA=simulated compiles the very same .cu files with the C++
# compiler: tests/simulated_cuda brings a <cuda_runtime.h> that executes kernels on the CPU, and stands in for the runtime,
# cuBLASLt and NCCL. The toolkit's headers are needed in both cases, because the simulator takes all types from them.

if(NOT ESCALERA_CUDA)
  return()
endif()

if(ESCALERA_CUDA STREQUAL "nvcc")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)  # where NVIDIA's packages put it, often outside PATH
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "ESCALERA_CUDA=nvcc: no nvcc was found. Install the CUDA toolkit (12.4 or newer) and put its bin folder "
                        "into PATH, or use the preset cpu.")
  endif()
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
    message(FATAL_ERROR "ESCALERA_CUDA=nvcc: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old for the kernels' C++20; 12.4 or newer.")
  endif()
  # CMake 3.25 does not know how nvcc is told about C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  if(ESCALERA_WERROR)
    # A kernel whose registers spill, or that keeps an array in local memory, is several times slower and says so nowhere else.
    string(APPEND CMAKE_CUDA_FLAGS " -Werror all-warnings -Xptxas --warn-on-spills,--warn-on-local-memory-usage,-Werror")
  endif()
elseif(NOT ESCALERA_CUDA STREQUAL "simulated")
  message(FATAL_ERROR "ESCALERA_CUDA is \"${ESCALERA_CUDA}\": nvcc, simulated or nothing")
endif()

find_package(CUDAToolkit 12.4 QUIET)
if(NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR "ESCALERA_CUDA=${ESCALERA_CUDA}: the CUDA toolkit (12.4 or newer) was not found; its headers are needed even "
                      "for simulated CUDA. Add -DCUDAToolkit_ROOT=/path/to/cuda, or use the preset cpu.")
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR AND (NCCL_LIBRARY OR ESCALERA_CUDA STREQUAL "simulated"))
  set(ESCALERA_HAVE_NCCL ON)
else()
  set(ESCALERA_HAVE_NCCL OFF)
endif()

# What the backend's sources compile and link with: real headers and libraries, or the simulator.
add_library(escalera_cuda_platform INTERFACE)
if(ESCALERA_CUDA STREQUAL "nvcc")
  target_include_directories(escalera_cuda_platform INTERFACE ${PROJECT_SOURCE_DIR}/common/core/cuda/device)
  target_link_libraries(escalera_cuda_platform INTERFACE CUDA::cudart CUDA::cublasLt)
  if(ESCALERA_HAVE_NCCL)
    target_include_directories(escalera_cuda_platform SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
    target_link_libraries(escalera_cuda_platform INTERFACE ${NCCL_LIBRARY})
  endif()
else()
  target_include_directories(escalera_cuda_platform INTERFACE ${PROJECT_SOURCE_DIR}/tests/simulated_cuda/include)
  target_link_libraries(escalera_cuda_platform INTERFACE simulated_cuda)
  if(NCCL_INCLUDE_DIR)
    target_include_directories(escalera_cuda_platform SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
  endif()
endif()
target_include_directories(escalera_cuda_platform SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})

# The backend is a shared library that programs open when a GPU is asked for; what both need, it takes from the program.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_ENABLE_EXPORTS ON)

# Builds all that the tests with the label "cuda" need, and no more.
add_custom_target(cuda_checks)

# escalera_kernels(FILE...): makes .cu files C++ where CUDA is simulated. g++ knows nothing of "#pragma unroll", and takes a loop
# that it did not unroll for one that may leave registers unset.
function(escalera_kernels)
  if(ESCALERA_CUDA STREQUAL "simulated")
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX
                                COMPILE_OPTIONS "-Wno-unknown-pragmas;-Wno-uninitialized;-Wno-maybe-uninitialized")
  endif()
endfunction()

message(STATUS "Escalera: CUDA backend: ${ESCALERA_CUDA}, toolkit ${CUDAToolkit_VERSION}, NCCL: ${ESCALERA_HAVE_NCCL}")
