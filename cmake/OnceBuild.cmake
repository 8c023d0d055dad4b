# How everything here is compiled. Nothing in this file reaches a consumer's own targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # So that the static libraries may go into somebody's shared one.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

if(ONCE_DEVELOPER_MODE)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)  # Target all_verify_interface_header_sets: each header compiles alone.
  find_program(CCACHE ccache)
  if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
  endif()
endif()

if(ONCE_SANITIZE)
  add_compile_options(-fsanitize=${ONCE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ONCE_SANITIZE})
endif()

# Warnings in developer mode only; the presets make them errors, but for release: a newer compiler must not stop
# somebody's build.
function(once_compile_privately target)
  if(NOT ONCE_DEVELOPER_MODE)
    return()
  endif()
  target_compile_definitions(${target} PRIVATE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast -Wcast-qual -Wformat=2 -Wundef
    -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi -Wimplicit-fallthrough
    # Designated initialisers leave out what has a default; that is what they are for.
    -Wno-missing-field-initializers
    # g++ leaves it out of -Wconversion and clang does not; both are to agree.
    -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE
      -Wduplicated-cond -Wlogical-op
      # g++ 12 reports it wrongly for std::string (GCC bug 105651).
      -Wno-restrict)
  endif()
endfunction()
