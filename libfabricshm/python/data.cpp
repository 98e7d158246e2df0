#include "libfabricshm/python/data.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace py = pybind11;

namespace fabricshm::python {

namespace {

// What a memoryview stands on: a type of its own and not pybind11's, since that allocates for each
// buffer that is asked for, and a view takes less than that otherwise.
struct ViewObject {
    PyObject head;
    std::shared_ptr<DataSetHandle> set;
    fabricshm_data_view view;
};

ViewObject* of(PyObject* object) {
    return reinterpret_cast<ViewObject*>(object);
}

int give_buffer(PyObject* object, Py_buffer* buffer, int flags) {
    const fabricshm_data_view& view = of(object)->view;
    // Read-only: asking for a writable one is refused here, with BufferError.
    return PyBuffer_FillInfo(buffer, object, const_cast<void*>(view.bytes),
                             static_cast<Py_ssize_t>(view.length), 1, flags);
}

void let_go(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    fabricshm_data_release(of(object)->set->set, &of(object)->view);
    of(object)->set.~shared_ptr();
    PyObject_Free(object);
    Py_DECREF(type);
}

PyTypeObject* view_type() {
    static PyTypeObject* const type = [] {
        static PyType_Slot slots[] = {
            {Py_tp_dealloc, reinterpret_cast<void*>(let_go)},
            {Py_bf_getbuffer, reinterpret_cast<void*>(give_buffer)},
            {0, nullptr},
        };
        static PyType_Spec spec = {"fabricshm._fabricshm.DataView", sizeof(ViewObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
        return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    }();
    return type;
}

// Takes the view over.
py::object memoryview_of(std::shared_ptr<DataSetHandle> set, const fabricshm_data_view& view) {
    auto* const made = PyObject_New(ViewObject, view_type());
    if (made == nullptr) {
        fabricshm_data_release(set->set, &view);
        throw py::error_already_set();
    }
    new (&made->set) std::shared_ptr<DataSetHandle>(std::move(set));
    made->view = view;
    const auto owner = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
    PyObject* const shown = PyMemoryView_FromObject(owner.ptr());
    if (shown == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(shown);
}

py::object memoryview_of(const py::bytes& copy) {
    PyObject* const shown = PyMemoryView_FromObject(copy.ptr());
    if (shown == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(shown);
}

}  // namespace

fabricshm_data_entry DataSet::entry_of(std::uint64_t index) const {
    fabricshm_data_entry entry{};
    entry.struct_size = sizeof entry;
    check(fabricshm_data_set_entry(handle_->set, index, &entry));
    return entry;
}

py::tuple DataSet::entry(std::uint64_t index) const {
    const fabricshm_data_entry found = entry_of(index);
    const bool is_folder = (found.flags & FABRICSHM_DATA_FOLDER) != 0;
    const auto& version = found.version;
    return py::make_tuple(py::bytes(found.name, found.name_bytes), found.bytes, is_folder,
                          found.mtime_ns,
                          py::make_tuple(version[0], version[1], version[2], version[3]));
}

py::bytes DataSet::name(std::uint64_t index) const {
    const fabricshm_data_entry found = entry_of(index);
    return py::bytes(found.name, found.name_bytes);
}

std::uint64_t DataSet::find(const std::string& name) const {
    std::uint64_t index = 0;
    check(fabricshm_data_set_find(handle_->set, name.c_str(), &index));
    return index;
}

py::array_t<std::uint64_t> DataSet::sizes() const {
    py::array_t<std::uint64_t> sizes(static_cast<py::ssize_t>(size()));
    auto values = sizes.mutable_unchecked<1>();
    for (std::uint64_t i = 0; i < size(); ++i) {
        values(static_cast<py::ssize_t>(i)) = entry_of(i).bytes;
    }
    return sizes;
}

std::uint64_t DataSet::fingerprint() const {
    // FNV-1a: against mistakes, not against malice.
    std::uint64_t sum = 0xcbf29ce484222325;
    const auto add = [&sum](const void* bytes, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            sum = (sum ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3;
        }
    };
    for (std::uint64_t i = 0; i < size(); ++i) {
        const fabricshm_data_entry found = entry_of(i);
        add(found.name, found.name_bytes);
        add(&found.bytes, sizeof found.bytes);
        add(found.version, sizeof found.version);
    }
    return sum;
}

py::object DataSet::view(std::uint64_t index, std::int64_t timeout_ms) const {
    const fabricshm_data_entry found = entry_of(index);
    if (found.bytes > FABRICSHM_DATA_CHUNK) {
        return memoryview_of(copy(index, 0, found.bytes, timeout_ms));
    }
    fabricshm_data_view view{};
    // What is in the pool takes less time than it takes to give up the interpreter's lock.
    int code = fabricshm_data_acquire(handle_->set, index, 0, 0, &view);
    if (code == FABRICSHM_ETIMEOUT && timeout_ms != 0) {
        code = without_lock(
            [&] { return fabricshm_data_acquire(handle_->set, index, 0, timeout_ms, &view); });
    }
    if (code == FABRICSHM_EBUSY) {  // no slot left, or the silo is; the copy's error says which
        return memoryview_of(copy(index, 0, found.bytes, timeout_ms));
    }
    check(code);
    return memoryview_of(handle_, view);
}

py::bytes DataSet::copy(std::uint64_t index, std::uint64_t offset, std::uint64_t bytes,
                        std::int64_t timeout_ms) const {
    auto made = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!made) throw py::error_already_set();
    std::uint64_t got = 0;
    void* const into = PyBytes_AS_STRING(made.ptr());
    // `made` is this function's alone until it returns.
    check(without_lock([&] {
        return fabricshm_data_read(handle_->set, index, offset, into, bytes, timeout_ms, &got);
    }));
    return made;
}

py::bytes DataSet::read(std::uint64_t index, std::uint64_t offset, std::uint64_t bytes,
                        std::int64_t timeout_ms) const {
    const std::uint64_t all = entry_of(index).bytes;
    const std::uint64_t left = offset < all ? all - offset : 0;
    return copy(index, offset, std::min(bytes, left), timeout_ms);
}

// `is_same`: it is head and so many bytes.
int DataSet::gather_one(std::uint64_t index, const std::string& head, void* into,
                        std::uint64_t bytes, std::int64_t timeout_ms, bool& is_same) const {
    fabricshm_data_entry entry{};
    entry.struct_size = sizeof entry;
    int code = fabricshm_data_set_entry(handle_->set, index, &entry);
    is_same = code == 0 && entry.bytes == head.size() + bytes;
    if (!is_same) return code;
    fabricshm_data_view view{};
    code = entry.bytes > FABRICSHM_DATA_CHUNK
               ? FABRICSHM_EBUSY
               : fabricshm_data_acquire(handle_->set, index, 0, timeout_ms, &view);
    if (code == 0) {
        const auto* const content = static_cast<const char*>(view.bytes);
        is_same = std::memcmp(content, head.data(), head.size()) == 0;
        if (is_same) std::memcpy(into, content + head.size(), bytes);
        fabricshm_data_release(handle_->set, &view);
        return 0;
    }
    if (code != FABRICSHM_EBUSY) return code;
    // In several parts, or no slot is left: as copies.
    std::string start(head.size(), '\0');
    std::uint64_t got = 0;
    code =
        fabricshm_data_read(handle_->set, index, 0, start.data(), start.size(), timeout_ms, &got);
    is_same = code == 0 && start == head;
    if (!is_same) return code;
    return fabricshm_data_read(handle_->set, index, head.size(), into, bytes, timeout_ms, &got);
}

std::int64_t DataSet::gather(const py::array_t<std::uint64_t>& which, const py::bytes& head,
                             const py::buffer& out, std::int64_t timeout_ms) const {
    const auto indices = which.unchecked<1>();
    const std::string start(head);
    const py::buffer_info room = out.request(true);
    const auto count = static_cast<std::uint64_t>(indices.shape(0));
    const auto bytes = static_cast<std::uint64_t>(room.size * room.itemsize);
    if (count == 0) return -1;
    if (bytes % count != 0 || PyBuffer_IsContiguous(room.view(), 'C') == 0) {
        throw py::value_error("the room is not as long as the files");
    }
    const std::uint64_t row = bytes / count;
    auto* const into = static_cast<char*>(room.ptr);
    std::int64_t other = -1;
    check(without_lock([&] {
        for (std::uint64_t i = 0; i < count && other < 0; ++i) {
            bool is_same = false;
            const std::uint64_t index = indices(static_cast<py::ssize_t>(i));
            const int code = gather_one(index, start, into + i * row, row, timeout_ms, is_same);
            if (code != 0) return code;
            if (!is_same) other = static_cast<std::int64_t>(index);
        }
        return 0;
    }));
    return other;
}

void DataSet::announce(int sampler, std::uint64_t seed, std::uint64_t epoch, std::uint32_t rank,
                       std::uint32_t world, std::uint64_t position, bool shuffle,
                       bool drop_last) const {
    fabricshm_data_plan plan =
        fabricshm_data_plan_make(static_cast<fabricshm_data_sampler>(sampler), seed, epoch);
    plan.rank = rank;
    plan.world = world;
    plan.position = position;
    plan.flags |= shuffle ? 0 : FABRICSHM_DATA_IN_ORDER;
    plan.flags |= drop_last ? FABRICSHM_DATA_DROP_LAST : 0;
    check(without_lock([&] { return fabricshm_data_announce(handle_->set, &plan); }));
}

std::uint64_t DataWriter::write(const py::buffer& bytes, std::int64_t timeout_ms) const {
    if (writer_ == nullptr) raise_closed("file");
    Py_buffer buffer;
    if (PyObject_GetBuffer(bytes.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw py::error_already_set();
    const auto length = static_cast<std::uint64_t>(buffer.len);
    const int code =
        without_lock([&] { return fabricshm_data_write(writer_, buffer.buf, length, timeout_ms); });
    PyBuffer_Release(&buffer);
    check(code);
    return length;
}

void DataWriter::commit(std::int64_t timeout_ms) {
    if (writer_ == nullptr) raise_closed("file");
    fabricshm_data_writer* const writer = std::exchange(writer_, nullptr);
    check(without_lock([&] { return fabricshm_data_commit(writer, timeout_ms); }));
}

void DataWriter::abort() {
    fabricshm_data_writer* const writer = std::exchange(writer_, nullptr);
    if (writer == nullptr) return;
    without_lock([&] {
        fabricshm_data_abort(writer);
        return 0;
    });
}

Data::Data(const std::optional<std::string>& socket) {
    check(without_lock(
        [&] { return fabricshm_data_open(nullptr, socket ? socket->c_str() : nullptr, &data_); }));
}

std::unique_ptr<DataSet> Data::list(const std::string& path, bool recursive, bool is_file,
                                    std::int64_t timeout_ms) const {
    fabricshm_data_set* set = nullptr;
    const std::uint32_t flags =
        is_file ? FABRICSHM_DATA_FILE : (recursive ? FABRICSHM_DATA_RECURSIVE : 0);
    check(without_lock(
        [&] { return fabricshm_data_list(data_, path.c_str(), flags, timeout_ms, &set); }));
    return std::make_unique<DataSet>(set);
}

std::unique_ptr<DataWriter> Data::create(const std::string& path, std::int64_t timeout_ms) const {
    fabricshm_data_writer* writer = nullptr;
    check(without_lock(
        [&] { return fabricshm_data_create(data_, path.c_str(), timeout_ms, &writer); }));
    return std::make_unique<DataWriter>(writer);
}

py::dict Data::stats() const {
    fabricshm_data_stats stats{};
    stats.struct_size = sizeof stats;
    check(fabricshm_data_get_stats(data_, &stats));
    py::dict all;
    all["hits"] = stats.hits;
    all["misses"] = stats.misses;
    all["stall"] = static_cast<double>(stats.stall_ns) * 1e-9;
    all["bytes"] = stats.bytes;
    all["copies"] = stats.copies;
    all["pinned"] = stats.pinned;
    all["slots"] = stats.slots;
    return all;
}

void bind_data(py::module_& module) {
    py::class_<DataSet>(module, "DataSet")
        .def("__len__", &DataSet::size)
        .def("entry", &DataSet::entry, py::arg("index"))
        .def("name", &DataSet::name, py::arg("index"))
        .def("find", &DataSet::find, py::arg("name"))
        .def("sizes", &DataSet::sizes)
        .def("fingerprint", &DataSet::fingerprint)
        .def("view", &DataSet::view, py::arg("index"), py::arg("timeout_ms"))
        .def("read", &DataSet::read, py::arg("index"), py::arg("offset"), py::arg("bytes"),
             py::arg("timeout_ms"))
        .def("gather", &DataSet::gather, py::arg("which"), py::arg("head"), py::arg("out"),
             py::arg("timeout_ms"))
        .def("announce", &DataSet::announce, py::arg("sampler"), py::arg("seed"), py::arg("epoch"),
             py::arg("rank"), py::arg("world"), py::arg("position"), py::arg("shuffle"),
             py::arg("drop_last"));
    py::class_<DataWriter>(module, "DataWriter")
        .def("write", &DataWriter::write, py::arg("bytes"), py::arg("timeout_ms"))
        .def("commit", &DataWriter::commit, py::arg("timeout_ms"))
        .def("abort", &DataWriter::abort);
    py::class_<Data>(module, "Data")
        .def(py::init<const std::optional<std::string>&>(), py::arg("socket"))
        .def("list", &Data::list, py::arg("path"), py::arg("recursive"), py::arg("file"),
             py::arg("timeout_ms"))
        .def("create", &Data::create, py::arg("path"), py::arg("timeout_ms"))
        .def("stats", &Data::stats);
}

}  // namespace fabricshm::python
