# Configures, builds, runs and installs the consumer. FLAGS are its own, and OPTIONS are cmake's; the warnings that other
# projects make errors are among them, for all that it builds.
file(REMOVE_RECURSE "${FOLDER}")
set(warnings "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Weffc++ -Wmissing-field-initializers -Werror")
separate_arguments(OPTIONS UNIX_COMMAND "${OPTIONS}")
execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DFROM=${FROM}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DCMAKE_CXX_FLAGS=${warnings} ${FLAGS}"
  ${OPTIONS} -S "${SOURCE}" -B "${FOLDER}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${FOLDER}" --target consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${FOLDER}/consumer" "${FOLDER}/consumer.db" COMMAND_ERROR_IS_FATAL ANY)
if(FROM STREQUAL "package")
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${FOLDER}" COMMAND_ERROR_IS_FATAL ANY)
  foreach(mode fiber cancel exit_thread signals rounding locale stacks move_only plugin global exit)
    file(REMOVE "${FOLDER}/process.db")
    execute_process(COMMAND "${FOLDER}/process" ${mode} "${FOLDER}/process.db" COMMAND_ECHO STDOUT TIMEOUT 240
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()

# Nothing of once goes where the consumer is installed.
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${FOLDER}" --prefix "${FOLDER}/installed" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed RELATIVE "${FOLDER}/installed" "${FOLDER}/installed/*")
if(NOT installed STREQUAL "bin/consumer")
  message(FATAL_ERROR "installing the consumer installs ${installed}")
endif()
