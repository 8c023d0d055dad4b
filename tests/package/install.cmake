# Installs the build folder FROM below PREFIX, and looks at what arrived.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${FROM}" --prefix "${PREFIX}" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(GLOB_RECURSE headers RELATIVE "${PREFIX}/include" "${PREFIX}/include/*")
file(GLOB_RECURSE written RELATIVE "${CMAKE_CURRENT_LIST_DIR}/../../include"
  "${CMAKE_CURRENT_LIST_DIR}/../../include/*.hpp")
if(NOT headers STREQUAL written)
  message(FATAL_ERROR "installed headers\n  ${headers}\nare not those of include/\n  ${written}")
endif()

# The package must work wherever it is moved to.
file(GLOB_RECURSE package "${PREFIX}/*.cmake")
foreach(file IN LISTS package)
  file(READ "${file}" text)
  if(text MATCHES "${FROM}|${PREFIX}")
    message(FATAL_ERROR "${file} names a folder of this machine: '${CMAKE_MATCH_0}'")
  endif()
endforeach()
