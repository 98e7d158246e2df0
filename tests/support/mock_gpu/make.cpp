// Makes the file of a simulated GPU: fabric_gpu_make FILE BYTES. For tests that are no C++
// programs.

#include <cstdlib>

#include "tests/support/mock_gpu/device.hpp"

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    return mock_gpu::make_device(argv[1], std::strtoull(argv[2], nullptr, 10)) ? 0 : 1;
}
