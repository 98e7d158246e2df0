# What measures, whatever is measured, and what the memory allows: also of a machine that has nothing else (gpu/).
add_library(bench_driver STATIC driver.cpp pattern.cpp local_step.cpp)
target_link_libraries(bench_driver PUBLIC fabric_options PRIVATE fabric_kernels)
target_compile_options(bench_driver PRIVATE -O3)

add_library(bench_moves STATIC memory_moves.cpp memory_moves_base.cpp memory_moves_avx2.cpp
                               memory_moves_avx512.cpp)
target_link_libraries(bench_moves PUBLIC fabric_options)
target_compile_options(bench_moves PRIVATE -O3)

add_executable(bench_limit_driver limit_driver.cpp step_pass.cpp)
target_link_libraries(bench_limit_driver PRIVATE bench_driver bench_moves)
