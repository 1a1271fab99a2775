# What a folder's CMakeLists.txt may say: escalera_library, escalera_program, escalera_tests, escalera_wide_sources.
# Each is a few lines of plain CMake; they exist so that a chapter's build file fits in one glance.

# escalera_library(NAME [SUBDIRS dir...] [EXCLUDE file...] [DEPENDS target...] [PRIVATE target...])
#
# A static library from the *.cpp files of this folder and of SUBDIRS, without those in EXCLUDE (where CMake chooses between
# a backend and its no_*.cpp stub) and without train.cpp, which is a program. DEPENDS are passed on to users of the library.
# New files are noticed at the next build. A folder of headers only becomes an interface library.
function(escalera_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SUBDIRS;EXCLUDE;DEPENDS;PRIVATE")
  set(patterns *.cpp)
  foreach(dir IN LISTS arg_SUBDIRS)
    list(APPEND patterns ${dir}/*.cpp)
  endforeach()
  file(GLOB sources RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${patterns})
  list(REMOVE_ITEM sources train.cpp ${arg_EXCLUDE})
  escalera_wide_sources(sources)
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_PRIVATE})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_DEPENDS} ${arg_PRIVATE})
  endif()
endfunction()

# escalera_wide_sources(LIST): files named *_v4.cpp hold kernels for processors with AVX-512 and bfloat16 instructions
# (x86-64-v4 and avx512bf16). They are compiled with those instructions and everything else is not; the code that calls them
# asks the processor for both first, once, at start. On other architectures they are left out and no_v4.cpp stands in for them; on x86-64 it is
# the other way round.
#
# Rule for such a file: intrinsics and plain loops in functions with internal linkage, behind a few entry points; no Eigen,
# no fmt, no standard containers. An inline function that it shares with other units would be compiled twice, the linker would
# keep one of them, and a machine without AVX-512 might be handed the wide one. A test checks this (cmake/CheckWide.cmake).
function(escalera_wide_sources list)
  set(kept)
  foreach(source IN LISTS ${list})
    get_filename_component(file ${source} NAME)
    if(file STREQUAL "no_v4.cpp")
      set(wide_stub ON)
      if(NOT ESCALERA_X86_64)
        list(APPEND kept ${source})
      endif()
    elseif(file MATCHES "_v4\\.cpp$")
      if(ESCALERA_X86_64)
        list(APPEND kept ${source})
        # A file's own options come after the directory's on the command line, and the last -march wins.
        # g++ 12 takes its own AVX-512 intrinsics for reads of uninitialised variables, so that warning is off here.
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-march=x86-64-v4;-mavx512bf16;-mprefer-vector-width=512;-Wno-uninitialized;-Wno-maybe-uninitialized")
      endif()
    else()
      list(APPEND kept ${source})
    endif()
  endforeach()
  set(${list} ${kept} PARENT_SCOPE)
endfunction()

# escalera_check_wide(LIBRARY): the test of that rule. Only in optimised builds: without inlining, every helper is a symbol.
function(escalera_check_wide library)
  get_target_property(type ${library} TYPE)
  if(ESCALERA_TESTS AND NOT ESCALERA_CUDA_TESTS_ONLY AND ESCALERA_X86_64 AND CMAKE_NM AND type STREQUAL "STATIC_LIBRARY" AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    add_test(NAME ${library}.wide_units_share_no_symbols
             COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:${library}>
                     -P ${PROJECT_SOURCE_DIR}/cmake/CheckWide.cmake)
    set_tests_properties(${library}.wide_units_share_no_symbols PROPERTIES LABELS quick)
  endif()
endfunction()

# escalera_program(NAME SOURCES file... DEPENDS target...): an executable in build/<preset>/bin, where scripts/launch looks.
# A program whose sources are not there is left out with a word, so that a chapter can be begun before its program is written.
function(escalera_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS")
  foreach(source IN LISTS arg_SOURCES)
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    if(NOT EXISTS ${path})
      message(STATUS "Escalera: ${name} is left out: there is no ${path}")
      return()
    endif()
  endforeach()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS})
endfunction()

# escalera_cuda_tests(NAME PROGRAM [FILTER pattern] [VARIANTS name...]): the tests of a GoogleTest program whose names match (default
# *cuda*), as ctest tests with the label "cuda". On a GPU they run once, and are skipped, with a word, where there is none
# (common_cuda checks that it is not the library that is missing).
# Simulated, they run once for each way in which a GPU could have done the same work: threads and blocks in forward, reverse or
# shuffled order, stream work at once or only when somebody waits for it, asynchronous copies that land late or early.
function(escalera_cuda_tests name program)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "FILTER" "VARIANTS")
  if(NOT ESCALERA_CUDA OR NOT ESCALERA_TESTS OR (ESCALERA_CUDA_LIBRARY_ONLY AND NOT name STREQUAL "common_cuda"))
    return()
  endif()
  if(NOT arg_FILTER)
    set(arg_FILTER "*cuda*")
  endif()
  add_dependencies(cuda_checks ${program})
  set(command ${program} --gtest_filter=${arg_FILTER} --gtest_brief=1)
  if(ESCALERA_CUDA STREQUAL "nvcc")
    add_test(NAME ${name}.cuda COMMAND ${command} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name}.cuda PROPERTIES LABELS cuda TIMEOUT 900 RESOURCE_LOCK gpu
                         SKIP_REGULAR_EXPRESSION "0 tests from 0 test suites;cudaErrorInsufficientDriver;cudaErrorNoDevice")
    return()
  endif()
  set(forward "ORDER=forward;STREAMS=eager;COPIES=late")
  set(reverse "ORDER=reverse;STREAMS=lazy;COPIES=early")
  set(shuffled "ORDER=shuffle;STREAMS=lazy;COPIES=late")
  if(NOT arg_VARIANTS)
    set(arg_VARIANTS forward reverse shuffled)
  endif()
  foreach(variant IN LISTS arg_VARIANTS)
    list(TRANSFORM ${variant} PREPEND SIMULATED_CUDA_ OUTPUT_VARIABLE environment)
    add_test(NAME ${name}.cuda.${variant} COMMAND ${command} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name}.cuda.${variant} PROPERTIES LABELS cuda TIMEOUT 900 ENVIRONMENT "${environment}"
                         FAIL_REGULAR_EXPRESSION "0 tests from 0 test suites")
  endforeach()
endfunction()

# escalera_tests(NAME [SOURCE_DIR dir] [DEPENDS target...] [RANKS n...] [TIMEOUT seconds] [SERIAL] [CUDA])
#
# GoogleTest programs from tests/ of this folder (or from SOURCE_DIR); the file name says how a test is run:
#   *_test.cpp           program NAME_tests, each test a ctest test of its own
#   *_full_test.cpp      program NAME_full_tests, the same with the label "full": only scripts/test.sh --full runs these
#   *_cuda_test.cpp      part of NAME_tests where the CUDA backend is built, see CUDA below
#   *_mpi_test.cpp       program NAME_mpi_tests, run as a whole by scripts/launch on each number of RANKS (default 1 2 4)
#   *_mpi_full_test.cpp  program NAME_mpi_full_tests, both
# Other *.cpp files beside them are helpers and are linked into each of the programs; only main comes from elsewhere: from
# GoogleTest, or for the MPI programs from tests/support/mpi_main.cpp, which makes each rank a part of the world that
# tests/support/mpi_world.h hands out. Programs run from the repository root. SERIAL: ctest runs nothing beside these.
# CUDA: some tests of NAME_tests have "cuda" in their names and need a device; see escalera_cuda_tests.
function(escalera_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL;CUDA" "SOURCE_DIR;TIMEOUT" "DEPENDS;RANKS")
  if(NOT ESCALERA_TESTS)
    return()
  endif()
  if(NOT arg_RANKS)
    set(arg_RANKS 1 2 4)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_SOURCE_DIR)
    set(arg_SOURCE_DIR tests)
  endif()
  file(GLOB helpers CONFIGURE_DEPENDS ${arg_SOURCE_DIR}/*.cpp)
  set(mpi_full ${helpers})
  list(FILTER mpi_full INCLUDE REGEX "_mpi_full_test\\.cpp$")
  set(mpi ${helpers})
  list(FILTER mpi INCLUDE REGEX "_mpi_test\\.cpp$")
  set(full ${helpers})
  list(FILTER full INCLUDE REGEX "_full_test\\.cpp$")
  list(FILTER full EXCLUDE REGEX "_mpi_full_test\\.cpp$")
  set(plain ${helpers})
  list(FILTER plain INCLUDE REGEX "_test\\.cpp$")
  list(FILTER plain EXCLUDE REGEX "(_mpi|_full)_test\\.cpp$")
  if(NOT ESCALERA_CUDA)
    list(FILTER plain EXCLUDE REGEX "_cuda_test\\.cpp$")
  endif()
  list(FILTER helpers EXCLUDE REGEX "_test\\.cpp$")

  foreach(kind IN ITEMS plain full)
    if(NOT ${kind})
      continue()
    endif()
    if(kind STREQUAL "full")
      set(program ${name}_full_tests)
      set(labels full)
    else()
      set(program ${name}_tests)
      set(labels quick)
    endif()
    escalera_program(${program} SOURCES ${${kind}} ${helpers} DEPENDS ${arg_DEPENDS} GTest::gtest_main)
    if(arg_CUDA AND kind STREQUAL "plain")
      escalera_cuda_tests(${name} ${program})
    endif()
    if(ESCALERA_CUDA_TESTS_ONLY)
      continue()
    endif()
    # Tests are listed when ctest starts, not while building: a program that cannot start fails its tests, not the build.
    gtest_discover_tests(${program} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                         PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT} RUN_SERIAL ${arg_SERIAL})
  endforeach()

  foreach(kind IN ITEMS mpi mpi_full)
    if(NOT ${kind} OR NOT ESCALERA_MPI OR ESCALERA_CUDA_TESTS_ONLY)
      continue()
    endif()
    set(program ${name}_${kind}_tests)
    set(labels mpi)
    if(kind STREQUAL "mpi_full")
      list(APPEND labels full)
    endif()
    escalera_program(${program} SOURCES ${${kind}} ${helpers} ${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp
                     DEPENDS ${arg_DEPENDS} MPI::MPI_CXX GTest::gtest)
    foreach(ranks IN LISTS arg_RANKS)
      add_test(NAME ${name}.${kind}.${ranks}_ranks
               COMMAND ${PROJECT_SOURCE_DIR}/scripts/launch -n ${ranks} $<TARGET_FILE:${program}>
               WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      # Ranks wait for each other: sharing two cores with a second job would mostly measure the scheduler.
      set_tests_properties(${name}.${kind}.${ranks}_ranks PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT} PROCESSORS 2)
    endforeach()
  endforeach()
endfunction()
