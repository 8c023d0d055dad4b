# An overlay port. tools/release puts in VERSION, SHA512 and URL; packaging/vcpkg has the form without them.
vcpkg_download_distfile(archive
  URLS "@URL@"
  FILENAME "once-${VERSION}.tar.gz"
  SHA512 "@SHA512@")
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${archive}")
vcpkg_check_features(OUT_FEATURE_OPTIONS options FEATURES
  aws ONCE_AWS
  postgresql ONCE_POSTGRESQL
  sqlite ONCE_SQLITE)
# vcpkg has no libcjose, without which there are neither tokens nor the program.
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS
  -DONCE_JWT=OFF -DONCE_PROGRAM=OFF -DONCE_UNITY=ON ${options})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME once CONFIG_PATH lib/cmake/once)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
