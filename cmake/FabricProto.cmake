# Messages and services of a .proto file of the folder.
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# fabric_proto(TARGET NAME [MESSAGES_ALONE])
#   Library TARGET of NAME.proto; its headers are NAME.pb.h and NAME.grpc.pb.h. MESSAGES_ALONE: without services.
function(fabric_proto target name)
    cmake_parse_arguments(arg "MESSAGES_ALONE" "" "" ${ARGN})
    set(out ${CMAKE_CURRENT_BINARY_DIR}/generated)
    set(sources ${out}/${name}.pb.cc)
    set(headers ${out}/${name}.pb.h)
    set(services)
    set(libraries protobuf::libprotobuf)
    if(NOT arg_MESSAGES_ALONE)
        list(APPEND sources ${out}/${name}.grpc.pb.cc)
        list(APPEND headers ${out}/${name}.grpc.pb.h)
        set(services --grpc_out=${out} --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN})
        list(PREPEND libraries PkgConfig::GRPCPP)
    endif()
    file(MAKE_DIRECTORY ${out})
    add_custom_command(
        OUTPUT ${sources} ${headers}
        COMMAND protobuf::protoc --proto_path=${CMAKE_CURRENT_SOURCE_DIR} --cpp_out=${out} ${services} ${name}.proto
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}.proto
        COMMENT "Generating messages from ${name}.proto")
    add_library(${target} STATIC ${sources})
    # Nothing in there is ours to mend, or is run often.
    target_compile_options(${target} PRIVATE -w $<$<CONFIG:Release>:-O1>)
    target_include_directories(${target} SYSTEM PUBLIC ${out})
    target_link_libraries(${target} PUBLIC ${libraries})
endfunction()
