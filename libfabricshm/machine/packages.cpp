#include "libfabricshm/machine/packages.hpp"

#include <hwloc.h>

namespace fabricshm {

namespace {

std::vector<int> numbers_of(hwloc_const_bitmap_t set) {
    std::vector<int> numbers;
    if (set == nullptr) return numbers;
    // A set may be infinite ("all processors"); those that exist are what the topology names.
    for (int i = ::hwloc_bitmap_first(set); i >= 0; i = ::hwloc_bitmap_next(set, i)) {
        numbers.push_back(i);
        if (::hwloc_bitmap_last(set) < 0) break;
    }
    return numbers;
}

Package package_of(hwloc_obj_t object, int number) {
    Package package;
    package.number = number;
    const char* model = ::hwloc_obj_get_info_by_name(object, "CPUModel");
    if (model != nullptr) package.model = model;
    package.processors = numbers_of(object->cpuset);
    package.nodes = numbers_of(object->nodeset);
    return package;
}

}  // namespace

std::vector<Package> read_packages() {
    std::vector<Package> packages;
    hwloc_topology_t topology = nullptr;
    if (::hwloc_topology_init(&topology) != 0) return packages;
    if (::hwloc_topology_load(topology) == 0) {
        const int count = ::hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
        for (int i = 0; i < count; ++i) {
            const hwloc_obj_t object =
                ::hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, static_cast<unsigned>(i));
            packages.push_back(package_of(object, i));
        }
        // Some virtual machines do not say what package their processors are in.
        if (packages.empty()) packages.push_back(package_of(::hwloc_get_root_obj(topology), 0));
    }
    ::hwloc_topology_destroy(topology);
    return packages;
}

}  // namespace fabricshm
