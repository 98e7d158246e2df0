# What `cmake --install` puts where for programs that link the library; programs and Python packages are
# installed by their folders. Included last, when the target fabricshm is known.
#   component `development`: headers, libfabricshm.so, find_package and pkg-config files
include(CMakePackageConfigHelpers)

set(FABRIC_CMAKE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/fabricshm)

if(TARGET fabricshm)
    # The ABI is promised within a minor version while the major one is 0.
    set_target_properties(fabricshm PROPERTIES
        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    install(TARGETS fabricshm
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT development NAMELINK_COMPONENT development)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/libfabricshm/include/fabricshm
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

    configure_package_config_file(
        ${CMAKE_SOURCE_DIR}/cmake/fabricshmConfig.cmake.in ${CMAKE_BINARY_DIR}/fabricshmConfig.cmake
        INSTALL_DESTINATION ${FABRIC_CMAKE_FOLDER}
        PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
    write_basic_package_version_file(${CMAKE_BINARY_DIR}/fabricshmConfigVersion.cmake
        COMPATIBILITY SameMinorVersion)
    install(FILES ${CMAKE_BINARY_DIR}/fabricshmConfig.cmake
                  ${CMAKE_BINARY_DIR}/fabricshmConfigVersion.cmake
        DESTINATION ${FABRIC_CMAKE_FOLDER} COMPONENT development)

    file(RELATIVE_PATH FABRIC_PC_TO_INCLUDE
        ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
    configure_file(${CMAKE_SOURCE_DIR}/cmake/fabricshm.pc.in ${CMAKE_BINARY_DIR}/fabricshm.pc @ONLY)
    configure_file(${CMAKE_SOURCE_DIR}/cmake/fabricshm++.pc.in ${CMAKE_BINARY_DIR}/fabricshm++.pc @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/fabricshm.pc ${CMAKE_BINARY_DIR}/fabricshm++.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
