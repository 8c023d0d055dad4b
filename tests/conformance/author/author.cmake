# Builds the project of an author of a store against the installed package, and runs its test: the suite must be all
# there, and the page that shows these files must show them as they are.
file(READ "${ROOT}/docs/writing-a-store.md" page)
foreach(part my_store_test.cpp CMakeLists.txt)
  file(READ "${SOURCE}/${part}" text)
  if(part STREQUAL "CMakeLists.txt")
    string(REGEX REPLACE "^.*\n(find_package\\(once)" "\\1" text "${text}")
  endif()
  string(FIND "${page}" "${text}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "docs/writing-a-store.md does not show ${part} as it is")
  endif()
endforeach()

file(REMOVE_RECURSE "${FOLDER}")
execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}" -B "${FOLDER}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -DCMAKE_BUILD_TYPE=Debug
  COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${FOLDER}" COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
execute_process(COMMAND "${FOLDER}/my_store_test" COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE out)
foreach(layer round_trip laws model race faults)
  if(NOT out MATCHES "tests? from my_store_${layer}")
    message(FATAL_ERROR "the suite has lost its layer ${layer} on the way:\n${out}")
  endif()
endforeach()
message("${out}")
