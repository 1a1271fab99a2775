# Compiler flags that hold for every translation unit of the project.
#
# They are set on the directory, not on targets, because one instruction set everywhere is a matter of correctness: Eigen's
# alignment, and so the layout of its types, follows the flags, and two units that disagree share objects that fit neither.

# x86-64-v3 (AVX2 and FMA), not "native": g++ 12 makes slower matrix products from Eigen with AVX-512 than with AVX2, and a
# program built here should start on the machine next door. Wider instructions come in at run time: oneDNN chooses its own,
# and our own kernels live in *_v4.cpp (see escalera_wide_sources in Escalera.cmake).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(ESCALERA_X86_64 ON)
  set(march_default x86-64-v3)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(ESCALERA_X86_64 OFF)
  set(march_default armv8.2-a)
  message(STATUS "Escalera: arm64 builds by these flags have not been tried; please report what you find")
else()
  set(ESCALERA_X86_64 OFF)
  set(march_default "")
  message(STATUS "Escalera: ${CMAKE_SYSTEM_PROCESSOR} has not been tried; building for the compiler's default processor")
endif()
set(ESCALERA_MARCH "${march_default}" CACHE STRING "Instruction set of every translation unit (-march=...); empty: compiler default")
if(ESCALERA_MARCH)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-march=${ESCALERA_MARCH}>)
endif()

# escalera_cxx_options(OPTION...): for C++ sources alone; nvcc has flags of its own (cmake/Cuda.cmake).
macro(escalera_cxx_options)
  foreach(option ${ARGN})
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endmacro()

# Headers of other projects are included as system headers (imported targets are), so these judge our own code only.
escalera_cxx_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(ESCALERA_WERROR)
  escalera_cxx_options(-Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These come from the optimiser: whether they appear, often in the middle of inlined standard library code, changes with
    # each g++ release. They stay visible, but must not break the build of a reader who has another compiler than we had.
    escalera_cxx_options(-Wno-error=maybe-uninitialized -Wno-error=array-bounds -Wno-error=stringop-overflow
                         -Wno-error=stringop-overread -Wno-error=restrict)
    # g++ 12 warns about joining two strings, always wrongly (its bug 105651).
    if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      escalera_cxx_options(-Wno-restrict)
    endif()
  endif()
endif()

# No recovery: a report that a test can overlook is worth little.
if(ESCALERA_SANITIZE STREQUAL "address")
  escalera_cxx_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(ESCALERA_SANITIZE STREQUAL "thread")
  # TSan does not understand fences; the standard library's own uses of them are not ours to warn about.
  escalera_cxx_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  add_link_options(-fsanitize=thread)
elseif(ESCALERA_SANITIZE)
  message(FATAL_ERROR "ESCALERA_SANITIZE is \"${ESCALERA_SANITIZE}\": address, thread or nothing")
endif()

# Includes are written from the repository root, so that a path in the code is a path that can be opened.
include_directories(${PROJECT_SOURCE_DIR})

# Where programs find configs/ no matter which folder they are started from.
add_compile_definitions(ESCALERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
