# One function for each kind of target.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# What is installed is the libraries and their headers, but for what names another component: once, the program.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

set(once_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/once")

# once_use(<component>): adds the component's folder unless that has happened.
function(once_use component)
  if(NOT DEFINED once_folder_${component})
    message(FATAL_ERROR "once: there is no component '${component}'. Look at ONCE_COMPONENTS for the names.")
  endif()
  if(NOT TARGET once_${component})
    set(folder "${once_folder_${component}}")
    add_subdirectory("${once_SOURCE_DIR}/${folder}" "${once_BINARY_DIR}/${folder}")
  endif()
endfunction()

# once_component(<name>
#   [INTERNAL]                  for programs that are built here: it has no public header, and is not installed
#   [SOURCES a.cpp ...]         without any the component is headers only
#   [PUBLIC_HEADERS ...]        as users write them: once/key.hpp
#   [DEPENDS ...]               what its headers need: components by bare name, or imported targets
#   [PRIVATE_DEPENDS ...]       what only its sources need; the same
#   [PACKAGES ...]              find_package() arguments that the imported targets come from, one string each:
#                               "SQLite3 3.35"; consumers of the installed component look them up too)
#
# Makes the library once_<name> with the alias once::<name>, checked headers, and its part of the installed package.
function(once_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INTERNAL" "" "SOURCES;PUBLIC_HEADERS;DEPENDS;PRIVATE_DEPENDS;PACKAGES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "once_component(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target once_${name})
  set(scope PUBLIC)
  if(NOT arg_SOURCES)
    set(kind INTERFACE)
    set(scope INTERFACE)
  else()
    set(kind STATIC)
  endif()

  set(needs "")  # The components among what it depends on.
  foreach(package IN LISTS arg_PACKAGES)
    separate_arguments(words UNIX_COMMAND "${package}")
    find_package(${words} REQUIRED)
  endforeach()

  once_join(sources ${target} ${arg_SOURCES})
  add_library(${target} ${kind} ${sources})
  add_library(once::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${scope} cxx_std_20)
  list(TRANSFORM arg_PUBLIC_HEADERS PREPEND "${once_SOURCE_DIR}/include/")
  if(NOT arg_INTERNAL)
    target_sources(${target} ${scope}
      FILE_SET HEADERS BASE_DIRS "${once_SOURCE_DIR}/include" FILES ${arg_PUBLIC_HEADERS})
  endif()

  foreach(dependency IN LISTS arg_DEPENDS arg_PRIVATE_DEPENDS)
    if(DEFINED once_folder_${dependency})
      once_use(${dependency})
      list(APPEND needs ${dependency})
    endif()
  endforeach()
  foreach(list arg_DEPENDS arg_PRIVATE_DEPENDS)
    set(resolved "")
    foreach(dependency IN LISTS ${list})
      if(DEFINED once_folder_${dependency})
        list(APPEND resolved once::${dependency})
      else()
        list(APPEND resolved ${dependency})
      endif()
    endforeach()
    set(${list} ${resolved})
  endforeach()
  target_link_libraries(${target} ${scope} ${arg_DEPENDS})
  if(NOT kind STREQUAL "INTERFACE")
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE_DEPENDS})
    target_include_directories(${target} PRIVATE "${once_SOURCE_DIR}/src")
    once_compile_privately(${target})
    once_precompile(${target} libraries)
  endif()

  if(arg_INTERNAL)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY once_components ${name})
  if(ONCE_INSTALL)
    install(TARGETS ${target} EXPORT once-${name}
      ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
      FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(EXPORT once-${name} NAMESPACE once:: DESTINATION "${once_package_dir}" FILE once-${name}-targets.cmake)
    file(CONFIGURE OUTPUT "${once_BINARY_DIR}/package/once-${name}-needs.cmake" @ONLY CONTENT
"# Written by once_component(${name}).
set(once_${name}_needs \"@needs@\")
set(once_${name}_packages \"@arg_PACKAGES@\")
")
    install(FILES "${once_BINARY_DIR}/package/once-${name}-needs.cmake" DESTINATION "${once_package_dir}")
    once_pkg_config(${name} "${kind}" "${needs}" "${arg_DEPENDS};${arg_PRIVATE_DEPENDS}" "${arg_PACKAGES}")
  endif()
endfunction()

# A target that components depend on: the module of pkg-config that it is, and the package of find_package() that it
# comes from, whose version in PACKAGES counts for the module too.
set(once_module_GTest::gtest gtest GTest)
set(once_module_OpenSSL::Crypto libcrypto OpenSSL)
set(once_module_OpenSSL::SSL libssl OpenSSL)
set(once_module_PostgreSQL::PostgreSQL libpq PostgreSQL)
set(once_module_SQLite::SQLite3 sqlite3 SQLite3)
set(once_module_ZLIB::ZLIB zlib ZLIB)
set(once_module_nlohmann_json::nlohmann_json nlohmann_json nlohmann_json)
set(once_module_zstd::libzstd_shared libzstd zstd)
set(once_module_zstd::libzstd_static libzstd zstd)
set(once_zstd zstd::libzstd_shared)
if(ONCE_STATIC)
  set(once_zstd zstd::libzstd_static)
endif()
# Those that are no module, and what the linker is told instead.
set(once_flags_Threads::Threads -pthread)
set(once_flags_cjose -lcjose)

# once_pkg_config(<name> <kind> <needs> <targets> <packages>): once-<name>.pc. The libraries are static, so each user links
# with what is below them too. That is why nothing in it is private.
function(once_pkg_config name kind needs targets packages)
  list(TRANSFORM needs PREPEND once- OUTPUT_VARIABLE requires)
  set(libs "")
  if(NOT kind STREQUAL "INTERFACE")
    set(libs "-L\${libdir}" -lonce_${name})
  endif()
  foreach(dependency IN LISTS targets)
    if(DEFINED once_module_${dependency})
      list(GET once_module_${dependency} 0 module)
      list(GET once_module_${dependency} 1 package)
      list(FILTER packages INCLUDE REGEX ".")
      foreach(wanted IN LISTS packages)
        if(wanted MATCHES "^${package} ([0-9.]+)$")
          string(APPEND module " >= ${CMAKE_MATCH_1}")
        endif()
      endforeach()
      list(APPEND requires "${module}")
    elseif(DEFINED once_flags_${dependency})
      list(APPEND libs ${once_flags_${dependency}})
    elseif(dependency AND NOT dependency MATCHES "^once::")
      message(FATAL_ERROR "once_component(${name}): say what pkg-config needs for '${dependency}', below once_component()")
    endif()
  endforeach()
  list(JOIN requires ", " requires)
  list(JOIN libs " " libs)
  # Wherever the folders are moved to, unless they were named by absolute paths.
  set(prefix "${CMAKE_INSTALL_PREFIX}")
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    string(REGEX REPLACE "[^/]+" ".." up "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
    set(prefix "\${pcfiledir}/${up}")
  endif()
  foreach(folder LIBDIR INCLUDEDIR)
    set(${folder} "\${prefix}")
    cmake_path(APPEND ${folder} "${CMAKE_INSTALL_${folder}}")
  endforeach()
  file(CONFIGURE OUTPUT "${once_BINARY_DIR}/package/once-${name}.pc" @ONLY CONTENT
"prefix=@prefix@
libdir=@LIBDIR@
includedir=@INCLUDEDIR@

Name: once-@name@
Description: @once_DESCRIPTION@ (component @name@, for C++20)
Version: @once_VERSION@
Requires: @requires@
Libs: @libs@
Cflags: -I\${includedir}
")
  install(FILES "${once_BINARY_DIR}/package/once-${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()

# once_program(<target> SOURCES ... LIBS ... [OUTPUT name] [DIRECTORY dir] [INSTALL] [TEST])
#
# A program. TEST: of expectations; with ONCE_UNITY its sources are joined. DIRECTORY is below the build folder; the
# default is the folder of the CMakeLists.txt that calls. DIRECTORY . puts it at the top.
function(once_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL;TEST" "OUTPUT;DIRECTORY" "SOURCES;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "once_program(${target}): no SOURCES, or unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(sources ${arg_SOURCES})
  if(arg_TEST)
    once_join(sources ${target} ${sources})
  endif()
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE ${arg_LIBS})
  target_include_directories(${target} PRIVATE "${once_SOURCE_DIR}/src")
  once_compile_privately(${target})
  if(arg_TEST)
    once_compile_as_test(${target})
    once_precompile(${target} tests)
  else()
    once_precompile(${target} programs)
  endif()
  if(arg_OUTPUT)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_OUTPUT})
  endif()
  if(arg_DIRECTORY)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${once_BINARY_DIR}/${arg_DIRECTORY}")
  endif()
  if(arg_INSTALL AND ONCE_INSTALL)
    install(TARGETS ${target} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT once)
  endif()
endfunction()

# once_long(<seconds> <test> ...): tests that take long begin first, so that none runs alone at the end. ctest knows no
# times yet where it has not run before. tools/selection counts with the seconds; they are rough.
function(once_long seconds)
  foreach(test IN LISTS ARGN)
    if(TEST ${test})
      set_tests_properties(${test} PROPERTIES COST ${seconds})
    endif()
  endforeach()
endfunction()

# once_rare(<test> ...): tests that say little of how once behaves: of packages, templates, benchmarks, tests of tests. A
# default run of .ci/run has only those that tools/selection chooses; `make test` has all.
function(once_rare)
  foreach(test IN LISTS ARGN)
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY LABELS rare)
    endif()
  endforeach()
endfunction()

# once_test(<name> SOURCES ... LIBS ... [TIMEOUT seconds] [SERIAL] [ARGS ...] [SHARDS n] [NOT_UNDER address|thread ...])
#
# A GoogleTest program <name>_test that is one entry of ctest, labelled with its folder below tests/. One entry for
# each program, not for each case: a process for each case costs more than the cases do, most of all under sanitizers.
# One program for a folder where that is possible: most of a test's compilation is templates that its neighbours need
# too. So each file has a namespace of its own, named after it, in place of an anonymous one.
# It fails when it runs no case, and when a case is skipped or disabled. NOT_UNDER leaves it out where the named
# sanitizer cannot work (say why beside it). ARGS go to the program. SHARDS: so many entries <name>_1 ... have the cases
# of a long one among them.
function(once_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "TIMEOUT;SHARDS" "SOURCES;LIBS;ARGS;NOT_UNDER")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "once_test(${name}): no SOURCES, or unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  foreach(sanitizer IN LISTS arg_NOT_UNDER)
    if(ONCE_SANITIZE MATCHES "${sanitizer}")
      return()
    endif()
  endforeach()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
    if(ONCE_SANITIZE)  # Its code is not optimised, and does three times as much.
      set(arg_TIMEOUT 1800)
    endif()
  endif()
  find_package(GTest REQUIRED)
  once_program(${name}_test TEST SOURCES ${arg_SOURCES} LIBS ${arg_LIBS} GTest::gmock GTest::gtest_main)
  file(RELATIVE_PATH label "${once_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
  set(entries ${name})
  if(arg_SHARDS)
    set(entries "")
    foreach(shard RANGE 1 ${arg_SHARDS})
      list(APPEND entries ${name}_${shard})
    endforeach()
  endif()
  set(shard 0)
  foreach(entry IN LISTS entries)
    set(environment "GTEST_OUTPUT=xml:${once_BINARY_DIR}/test-results/${entry}.xml" GTEST_COLOR=no)
    if(arg_SHARDS)
      list(APPEND environment GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${shard})
      math(EXPR shard "${shard} + 1")
    endif()
    add_test(NAME ${entry} COMMAND ${name}_test ${arg_ARGS})
    set_tests_properties(${entry} PROPERTIES
      LABELS "${label}"
      TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "${environment}"
      FAIL_REGULAR_EXPRESSION "Running 0 tests;\\[  SKIPPED \\];YOU HAVE [0-9]+ DISABLED TEST")
    if(arg_SERIAL)
      set_tests_properties(${entry} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

# once_server_test(<name> SOURCES ... LIBS ... [ARGS ...] [SERVER moto|postgresql [its options ...]] [TIMEOUT seconds]
#                  [UNDER address|thread ...])
# once_server_test(<name> COMMAND ... [TIMEOUT seconds] [UNDER address|thread ...])
#
# A test that needs a server or a library from PyPI or npm, labelled real_servers. The first form is a GoogleTest program
# that is run by tests/real_servers/with-<server> (default: moto), the second any command that exits with 0 when its
# tests have passed. Runs with g++ and without sanitizers only: it is about the others, and they are slow. UNDER names
# the sanitizers under which it runs too, as threads of ours meet in it.
function(once_server_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBS;ARGS;COMMAND;SERVER;UNDER")
  if(arg_UNPARSED_ARGUMENTS OR (arg_SOURCES AND arg_COMMAND) OR NOT (arg_SOURCES OR arg_COMMAND))
    message(FATAL_ERROR "once_server_test(${name}): SOURCES or COMMAND, or unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(ONCE_SANITIZE)
    string(REPLACE "," ";" sanitizers "${ONCE_SANITIZE}")
    list(GET sanitizers 0 sanitizer)
    if(NOT sanitizer IN_LIST arg_UNDER)
      return()
    endif()
  elseif(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  if(arg_SOURCES)
    if(NOT arg_SERVER)
      set(arg_SERVER moto)
    endif()
    list(POP_FRONT arg_SERVER server)
    find_package(GTest REQUIRED)
    once_program(${name}_test TEST SOURCES ${arg_SOURCES} LIBS ${arg_LIBS} GTest::gmock GTest::gtest_main)
    set(arg_COMMAND "${once_SOURCE_DIR}/tests/real_servers/with-${server}" ${arg_SERVER}
      $<TARGET_FILE:${name}_test> ${arg_ARGS})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)  # The first one may have to install the tools.
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES
    LABELS real_servers
    TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "GTEST_OUTPUT=xml:${once_BINARY_DIR}/test-results/${name}.xml;GTEST_COLOR=no;PYTHONDONTWRITEBYTECODE=1"
    FAIL_REGULAR_EXPRESSION "Running 0 tests;\\[  SKIPPED \\];YOU HAVE [0-9]+ DISABLED TEST")
endfunction()

# once_fuzz(<name> SOURCES ... LIBS ...)
#
# A libFuzzer program fuzz_<name>, in the preset "asan", which counts for it what the libraries do. tools/fuzz runs them
# all, each with the corpus in fuzz/corpus/<name>.tar.
function(once_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "once_fuzz(${name}): no SOURCES, or unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  once_program(fuzz_${name} SOURCES ${arg_SOURCES} LIBS ${arg_LIBS} DIRECTORY fuzz)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET all_fuzz_targets)
    add_custom_target(all_fuzz_targets)
  endif()
  add_dependencies(all_fuzz_targets fuzz_${name})
endfunction()

# once_finish(): the files that find_package(once) reads, and the target once_libraries. Called once, after all components.
function(once_finish)
  get_property(components GLOBAL PROPERTY once_components)
  if(ONCE_INSTALL)
    configure_package_config_file("${once_SOURCE_DIR}/cmake/once-config.cmake.in"
      "${once_BINARY_DIR}/package/once-config.cmake" INSTALL_DESTINATION "${once_package_dir}")
    write_basic_package_version_file("${once_BINARY_DIR}/package/once-config-version.cmake"
      VERSION ${once_VERSION} COMPATIBILITY SameMinorVersion)
    install(FILES "${once_BINARY_DIR}/package/once-config.cmake" "${once_BINARY_DIR}/package/once-config-version.cmake"
      DESTINATION "${once_package_dir}")
    install(FILES "${once_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/once")
  endif()

  # All that is installed, and nothing else.
  list(TRANSFORM components PREPEND once_)
  list(APPEND components $<TARGET_NAME_IF_EXISTS:once_cli>)
  add_custom_target(once_libraries DEPENDS ${components})
endfunction()
