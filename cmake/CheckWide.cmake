# Fails if a *_v4.cpp unit of a static library defines a weak symbol: an inline function or template that other units may
# define as well. The linker keeps one definition, and if that is the wide one, machines without AVX-512 stop on it.
# Run as: cmake -DNM=nm -DLIBRARY=libX.a -P CheckWide.cmake

execute_process(COMMAND ${NM} --demangle --defined-only ${LIBRARY} OUTPUT_VARIABLE listing RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} could not read ${LIBRARY}")
endif()

string(REPLACE ";" " " listing "${listing}")
string(REPLACE "[" "(" listing "${listing}")  # brackets would glue list elements together
string(REPLACE "]" ")" listing "${listing}")
string(REPLACE "\n" ";" lines "${listing}")
set(unit "")
set(units 0)
set(shared "")
foreach(line IN LISTS lines)
  if(line MATCHES "^([^ ]+\\.o):$")
    set(unit ${CMAKE_MATCH_1})
    if(unit MATCHES "_v4\\.cpp")
      math(EXPR units "${units} + 1")
    endif()
  elseif(unit MATCHES "_v4\\.cpp" AND line MATCHES "^[0-9a-f]+ [WVu] (.*)$")
    string(APPEND shared "  ${unit}: ${CMAKE_MATCH_1}\n")
  endif()
endforeach()

if(shared)
  message(FATAL_ERROR "wide units define symbols that other units may define too:\n${shared}"
                      "Give these functions internal linkage, or keep the header that brings them out of the wide unit.")
endif()
message(STATUS "${units} wide units define no shared symbols")
