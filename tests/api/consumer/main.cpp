// The same through the C++ header.
#include <cstdio>
#include <fabricshm/fabricshm.hpp>

namespace fabric = fabricshm::api;

int main() {
    static_assert(fabric::kDTypeOf<float> == FABRICSHM_F32);
    const auto session = fabric::Session::open({.socket = "/nonexistent/attach.sock"});
    if (session.ok() || session.error().code != FABRICSHM_EDAEMON) return 1;
    if (session.error().text.find("/nonexistent") == std::string::npos) return 2;
    std::printf("%s\n", session.error().text.c_str());
    return 0;
}
