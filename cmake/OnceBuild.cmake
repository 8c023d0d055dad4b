# How everything here is compiled. Nothing in this file reaches a consumer's own targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # So that the static libraries may go into somebody's shared one.
set(CMAKE_UNITY_BUILD OFF)  # once_join() does it, by groups that are known to compile together.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# What another project wants to know of its own sources, it does not want to know of these: neither warnings, whatever
# they are raised to, nor what a tool says.
if(NOT PROJECT_IS_TOP_LEVEL AND NOT ONCE_DEVELOPER_MODE)
  add_compile_options(-w)
  foreach(tool CLANG_TIDY CPPCHECK CPPLINT INCLUDE_WHAT_YOU_USE)
    set(CMAKE_CXX_${tool} "")
  endforeach()
endif()

if(ONCE_DEVELOPER_MODE)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)  # Target all_verify_interface_header_sets: each header compiles alone.
  find_program(CCACHE ccache)
  if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
  endif()
endif()

# Static libraries only, for every find_package() that follows. Programs are not position independent then, which is
# smaller, and nothing has to be relocated when they start.
if(ONCE_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
  add_link_options(-static "LINKER:-T,${CMAKE_CURRENT_LIST_DIR}/c_libraries.ld")
endif()

if(ONCE_SANITIZE)
  add_compile_options(-fsanitize=${ONCE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ONCE_SANITIZE})
endif()

# Warnings in developer mode only; the presets make them errors, but for release: a newer compiler must not stop
# somebody's build.
function(once_compile_privately target)
  if(ONCE_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # It takes sources that are joined for headers.
  endif()
  if(NOT ONCE_DEVELOPER_MODE)
    return()
  endif()
  target_compile_definitions(${target} PRIVATE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast -Wcast-qual -Wformat=2 -Wundef
    -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi -Wimplicit-fallthrough
    # g++ leaves it out of -Wconversion and clang does not; both are to agree.
    -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE
      -Wduplicated-cond -Wlogical-op
      # g++ 12 reports it wrongly for std::string (GCC bug 105651).
      -Wno-restrict)
  else()
    target_compile_options(${target} PRIVATE -Wreserved-identifier)
  endif()
endfunction()

# Counts what an input reaches, for libFuzzer. The address sanitizer's runtime has the counters' functions, so other
# programs link too.
function(once_instrument target)
  if(ONCE_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# once_precompile(<target> libraries|programs|tests): what most files include is parsed once for all targets of a kind.
# The three differ in what a compiler wants to be the same for a precompiled header: -fPIC or -fPIE, and -O0.
# Headers with macros that single targets define stay out. That each file includes what it needs is seen by clang-tidy
# and by the consumers in tests/package, which precompile nothing.
function(once_precompile target kind)
  if(kind STREQUAL "libraries")
    once_instrument(${target})
  endif()
  if(NOT ONCE_PRECOMPILE)
    return()
  endif()
  set(owner once_precompiled_${kind})
  if(NOT TARGET ${owner})
    set(headers
      <algorithm> <array> <atomic> <charconv> <chrono> <condition_variable> <cstddef> <cstdint> <cstring> <exception>
      <functional> <limits> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <system_error> <thread>
      <unordered_map> <utility> <variant> <vector>)
    if(NOT kind STREQUAL "libraries")
      list(APPEND headers <nlohmann/json.hpp>)
    endif()
    if(kind STREQUAL "tests")
      list(APPEND headers <filesystem> <fstream> <gmock/gmock.h> <gtest/gtest.h>)
    endif()
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/${owner}.cpp" CONTENT "")
    add_library(${owner} OBJECT "${CMAKE_BINARY_DIR}/${owner}.cpp")
    target_precompile_headers(${owner} PRIVATE ${headers})
    once_compile_privately(${owner})
    if(kind STREQUAL "libraries")
      once_instrument(${owner})
    endif()
    if(NOT kind STREQUAL "libraries")
      set_target_properties(${owner} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${owner} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
    endif()
    if(kind STREQUAL "tests")
      target_link_libraries(${owner} PRIVATE GTest::gmock)  # Its definitions.
      once_compile_as_test(${owner})
    endif()
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      target_compile_options(${owner} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")  # Else ccache never finds it again.
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# once_join(<out> <target> <source> ...): what to compile in place of these sources of the calling folder. With ONCE_UNITY
# they are joined by sixteens. CMake's UNITY_BUILD does that with absolute paths, so that ccache knows nothing in another
# clone; these are relative.
function(once_join out target)
  set(${out} ${ARGN} PARENT_SCOPE)
  list(LENGTH ARGN count)
  if(NOT ONCE_UNITY OR count LESS 2)
    return()
  endif()
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/joined")
  file(RELATIVE_PATH back "${folder}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set(joined "")
  math(EXPR last "${count} - 1")
  foreach(begin RANGE 0 ${last} 16)
    list(SUBLIST ARGN ${begin} 16 sources)
    list(TRANSFORM sources REPLACE "(.+)" "#include \"${back}/\\1\"\n")
    string(JOIN "" content ${sources})
    file(CONFIGURE OUTPUT "${folder}/${target}_${begin}.cpp" CONTENT "${content}")
    list(APPEND joined "${folder}/${target}_${begin}.cpp")
  endforeach()
  set(${out} ${joined} PARENT_SCOPE)
endfunction()

# Expectations are much code that runs once: a third of the time of a whole build goes into optimising them.
function(once_compile_as_test target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Debug>:-O0>)
endfunction()
