#include "libfabricshm/python/arrays.hpp"

#include <utility>

#include "libfabricshm/python/errors.hpp"

namespace py = pybind11;

namespace fabricshm::python {
namespace {

// What the capsule behind an array owns: its arena, and the block where it was made for the array.
struct Block {
    std::shared_ptr<ArenaHandle> arena;
    void* data = nullptr;
    bool owned = false;

    ~Block() {
        // In a forked child the block is the parent's.
        if (owned && arena->mine()) fabricshm_free(arena->arena, data);
    }
};

Bytes array_over(std::unique_ptr<Block> block, std::uint64_t bytes) {
    void* const data = block->data;
    // Called with the interpreter's lock when the last view of the array goes, on whichever thread.
    const py::capsule owner(block.get(), [](void* held) { delete static_cast<Block*>(held); });
    block.release();
    return Bytes(static_cast<py::ssize_t>(bytes), static_cast<std::uint8_t*>(data), owner);
}

// A strided array would have to be copied, and results copied back: a caller that wants that has to
// say so.
py::array contiguous(const py::object& object) {
    if (!py::isinstance<py::array>(object)) throw py::type_error("expected a numpy array");
    py::array array = py::reinterpret_borrow<py::array>(object);
    if ((array.flags() & py::array::c_style) == 0) {
        throw py::value_error("expected a C-contiguous array");
    }
    return array;
}

}  // namespace

Bytes borrowed_array(std::shared_ptr<ArenaHandle> arena, void* data, std::uint64_t bytes) {
    auto block = std::make_unique<Block>();
    block->arena = std::move(arena);
    block->data = data;
    return array_over(std::move(block), bytes);
}

Bytes new_array(std::shared_ptr<ArenaHandle> arena, std::uint64_t bytes) {
    auto block = std::make_unique<Block>();
    // A block of nothing still needs an address of its own.
    // Without the interpreter's lock: a heap that is full asks the daemon for another region.
    block->data =
        without_lock([&] { return fabricshm_alloc(arena->arena, bytes == 0 ? 1 : bytes); });
    if (block->data == nullptr) check(arena->mine() ? FABRICSHM_ENOMEM : FABRICSHM_ECLOSED);
    block->arena = std::move(arena);
    block->owned = true;
    return array_over(std::move(block), bytes);
}

const void* readable(const py::object& array) {
    return array.is_none() ? nullptr : contiguous(array).data();
}

void* writable(const py::object& array) {
    // mutable_data() raises ValueError for a read-only array.
    return array.is_none() ? nullptr : contiguous(array).mutable_data();
}

}  // namespace fabricshm::python
