#include "libfabricshm/python/dlpack.hpp"

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/dtype.hpp"

namespace py = pybind11;

namespace fabricshm::python {
namespace {

// The structures of the DLPack specification, version 0.x: the layout is fixed for all producers.
struct Device {
    std::int32_t type;
    std::int32_t id;
};
constexpr std::int32_t kCpu = 1;

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};
constexpr std::uint8_t kInt = 0;
constexpr std::uint8_t kUnsigned = 1;
constexpr std::uint8_t kFloat = 2;
constexpr std::uint8_t kComplex = 5;
constexpr std::uint8_t kBool = 6;

struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: row-major without gaps
    std::uint64_t byte_offset;
};

struct Managed {
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};

constexpr const char* kFresh = "dltensor";       // not taken yet
constexpr const char* kTaken = "used_dltensor";  // its consumer frees it

// What a capsule of ours points to. Shape and strides are its own: DLPack wants them as 64-bit
// numbers that stay where they are.
struct Exported {
    Managed managed{};
    py::array array;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
};

void release_exported(Managed* managed) {
    const py::gil_scoped_acquire lock;  // a consumer may free it on any thread
    delete static_cast<Exported*>(managed->context);
}

// A type that NumPy lacks: its arrays are of unsigned integers here, and only the caller knows
// better.
bool is_foreign(const kernels::DTypeRow& row) {
    return kernels::is_number(row.type) && std::string_view(row.python) != row.numpy;
}

const kernels::DTypeRow* foreign_row(const DataType& type) {
    for (const auto& row : kernels::kDTypeRows) {
        const bool same = row.dlpack == type.code && row.size * 8 == type.bits && type.lanes == 1;
        if (same && is_foreign(row)) return &row;
    }
    return nullptr;
}

std::uint8_t code_of(char kind, const std::string& type) {
    for (const auto& row : kernels::kDTypeRows) {
        if (is_foreign(row) && type == row.python) return row.dlpack;
    }
    switch (kind) {
        case 'i':
            return kInt;
        case 'u':
            return kUnsigned;
        case 'f':
            return kFloat;
        case 'c':
            return kComplex;
        case 'b':
            return kBool;
        default:
            throw py::buffer_error("DLPack has no type for this array");
    }
}

std::string numpy_name(const DataType& type) {
    // The second part of the result says what they hold.
    if (const auto* row = foreign_row(type)) return row->numpy;
    const std::string bits = std::to_string(type.bits);
    // More than one lane is a vector type, of which NumPy has none.
    switch (type.lanes == 1 ? type.code : 255) {
        case kInt:
            return "int" + bits;
        case kUnsigned:
            return "uint" + bits;
        case kFloat:
            return "float" + bits;
        case kComplex:
            return "complex" + bits;
        case kBool:
            return "bool";
        default:
            throw py::buffer_error("NumPy has no type for this DLPack tensor");
    }
}

// A capsule that was not taken still owns its tensor.
void free_fresh(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, kFresh) == 0) return;
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kFresh));
    if (managed->deleter != nullptr) managed->deleter(managed);
}

std::vector<py::ssize_t> byte_strides(const Tensor& tensor, py::ssize_t item) {
    std::vector<py::ssize_t> strides(static_cast<std::size_t>(tensor.ndim));
    py::ssize_t step = item;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
        const auto at = static_cast<std::size_t>(i);
        strides[at] = tensor.strides == nullptr ? step : tensor.strides[i] * item;
        step *= tensor.shape[i];
    }
    return strides;
}

}  // namespace

py::capsule to_dlpack(const py::array& array, const std::string& type) {
    auto exported = std::make_unique<Exported>();
    exported->array = array;
    const py::ssize_t item = array.itemsize();
    for (py::ssize_t i = 0; i < array.ndim(); ++i) {
        // DLPack counts strides in elements: a field of a structured array may lie between two of
        // them.
        if (array.strides(i) % item != 0) {
            throw py::buffer_error("the strides are no multiples of the element");
        }
        exported->shape.push_back(array.shape(i));
        exported->strides.push_back(array.strides(i) / item);
    }
    Tensor& tensor = exported->managed.tensor;
    // DLPack 0.x knows no read-only memory: the exporter of a read-only array trusts the consumer.
    tensor.data = const_cast<void*>(array.data());
    tensor.device = {kCpu, 0};
    tensor.ndim = static_cast<std::int32_t>(array.ndim());
    tensor.dtype = {code_of(array.dtype().kind(), type), static_cast<std::uint8_t>(item * 8), 1};
    tensor.shape = exported->shape.data();
    tensor.strides = exported->strides.data();
    exported->managed.context = exported.get();
    exported->managed.deleter = &release_exported;

    PyObject* capsule = PyCapsule_New(&exported->managed, kFresh, &free_fresh);
    if (capsule == nullptr) throw py::error_already_set();
    // From here on the capsule owns it, and after it the taker of the tensor.
    exported.release();
    return py::reinterpret_steal<py::capsule>(capsule);
}

py::tuple from_dlpack(const py::capsule& capsule) {
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), kFresh));
    if (managed == nullptr) throw py::error_already_set();
    // What it says is taken as it is: a capsule comes from this very process.
    const Tensor& tensor = managed->tensor;
    if (tensor.device.type != kCpu) throw py::buffer_error("the tensor is not in CPU memory");
    const py::dtype dtype(numpy_name(tensor.dtype));
    const std::vector<py::ssize_t> shape(tensor.shape, tensor.shape + tensor.ndim);
    const auto strides = byte_strides(tensor, dtype.itemsize());
    const auto* foreign = foreign_row(tensor.dtype);
    void* const data = static_cast<char*>(tensor.data) + tensor.byte_offset;

    // Renamed, so that the capsule frees nothing any more: from now on `owner` does.
    PyCapsule_SetName(capsule.ptr(), kTaken);
    const py::capsule owner(managed, [](void* held) {
        auto* taken = static_cast<Managed*>(held);
        if (taken->deleter != nullptr) taken->deleter(taken);
    });
    return py::make_tuple(py::array(dtype, shape, strides, data, owner),
                          foreign != nullptr ? std::string(foreign->python) : std::string());
}

}  // namespace fabricshm::python
