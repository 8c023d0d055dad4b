# Debian packages, by cpack: once, the program with its manual, and libonce-dev, the libraries. tools/packages makes
# them. Each file of the package once names its component; all others belong to the libraries.
set(manual "${once_BINARY_DIR}/manual")
add_custom_command(OUTPUT "${manual}/done"
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${manual}"
  COMMAND "${once_SOURCE_DIR}/tools/manual" "${manual}" ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:once_cli>
  COMMAND "${CMAKE_COMMAND}" -E touch "${manual}/done"
  DEPENDS once_cli "${once_SOURCE_DIR}/tools/manual" VERBATIM)
add_custom_target(once_manual DEPENDS "${manual}/done")

# Where there is no manual yet, the program is installed without it.
install(DIRECTORY "${manual}/share/" DESTINATION "${CMAKE_INSTALL_DATADIR}" COMPONENT once OPTIONAL)
install(DIRECTORY "${once_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/once/docs" COMPONENT once
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(FILES "${once_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/once" COMPONENT once)
install(FILES "${once_SOURCE_DIR}/examples/proxy.toml" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/once/examples" COMPONENT once)
install(DIRECTORY "${once_SOURCE_DIR}/deploy/systemd/" DESTINATION lib/systemd/system COMPONENT once)
# What the documents lead to: alerts, the dashboard, templates.
install(DIRECTORY "${once_SOURCE_DIR}/deploy/" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/once/deploy" COMPONENT once)
# What Debian wants of each package. tools/packages writes them.
foreach(package once libonce-dev)
  set(component once)
  if(package STREQUAL "libonce-dev")
    set(component development)
  endif()
  install(DIRECTORY "${once_BINARY_DIR}/debian/${package}/" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${package}"
    COMPONENT ${component} OPTIONAL)
endforeach()

set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME once)
set(CPACK_PACKAGE_VENDOR once)
set(CPACK_PACKAGE_CONTACT "once developers <once@once.invalid>")
set(CPACK_PACKAGE_VERSION ${once_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL once development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)  # Else that of the machine that packs.
endif()
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
  WORLD_EXECUTE)
set(CPACK_DEBIAN_ONCE_PACKAGE_NAME once)
set(CPACK_DEBIAN_ONCE_PACKAGE_SECTION utils)
# Each value here is written as it is, and cpack 3.25 knows no variable for Multi-Arch.
set(CPACK_DEBIAN_ONCE_PACKAGE_PRIORITY "optional\nMulti-Arch: foreign")
set(CPACK_COMPONENT_ONCE_DESCRIPTION "Runs an operation once and gives every caller its result
once claims a key before a charge, an order or an e-mail, runs the work, keeps
its result, and replays it to every later caller. It stands in front of
shell jobs (once run), HTTP services (once proxy) and queues (once sqs), and
keeps its records in a file, in PostgreSQL or in DynamoDB.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libonce-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_PRIORITY "optional\nMulti-Arch: same")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
# What find_package(once) looks up for some component. Those of a component that is not used are not needed.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libsqlite3-dev, libssl-dev, zlib1g-dev, libzstd-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS "cmake, nlohmann-json3-dev, libpq-dev, libcjose-dev, libboost1.81-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "once, libpqxx-dev, libgtest-dev, libgmock-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Idempotency for C++ services: libraries and headers
The libraries by which a C++20 service or an AWS Lambda function claims a key
before it acts, keeps the result, and replays it. CMake: find_package(once).")
include(CPack)
