# Configures, builds and runs the consumer.
file(REMOVE_RECURSE "${FOLDER}")
execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DFROM=${FROM}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -S "${SOURCE}" -B "${FOLDER}"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${FOLDER}" --target consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${FOLDER}/consumer" "${FOLDER}/consumer.db" COMMAND_ERROR_IS_FATAL ANY)
