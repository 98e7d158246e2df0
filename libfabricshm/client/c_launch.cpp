// The C ABI: what the launcher of this process set.

#include <cstring>

#include "libfabricshm/base/launcher.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"

using namespace fabricshm;

extern "C" {

int fabricshm_launcher(fabricshm_launch* launch) {
    return guarded("fabricshm_launcher", [&]() -> int {
        if (launch == nullptr) return refuse("fabricshm_launcher: launch is NULL");
        if (launch->struct_size < sizeof *launch) {
            return refuse("launch->struct_size is %zu, less than %zu", launch->struct_size,
                          sizeof *launch);
        }
        const auto read = read_launch();
        if (!read.ok()) return fail(read.error(), "launcher");
        const std::size_t size = launch->struct_size;
        *launch = {
            size,       read->rank,  read->world,          read->local_rank, read->local_world,
            read->node, read->nodes, read->launcher.data()};
        // What a newer caller knows beyond: not set.
        std::memset(reinterpret_cast<char*>(launch) + sizeof *launch, 0, size - sizeof *launch);
        return FABRICSHM_OK;
    });
}

}  // extern "C"
