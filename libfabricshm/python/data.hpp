// Data sets for Python: listings, and views as objects with the buffer protocol. What people call
// is in data.py.

#pragma once

#include <fabricshm/data.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "libfabricshm/python/errors.hpp"

namespace fabricshm::python {

/// Owner of the C handle, in a child of fork() as well: the library makes its own way there.
struct DataSetHandle {
    explicit DataSetHandle(fabricshm_data_set* listed) : set(listed) {}
    ~DataSetHandle() { fabricshm_data_set_close(set); }
    DataSetHandle(const DataSetHandle&) = delete;
    DataSetHandle& operator=(const DataSetHandle&) = delete;

    fabricshm_data_set* set;
};

/// A listing. Views keep it open.
class DataSet {
  public:
    explicit DataSet(fabricshm_data_set* set) : handle_(std::make_shared<DataSetHandle>(set)) {}

    std::uint64_t size() const { return fabricshm_data_set_count(handle_->set); }
    /// (name as bytes, bytes, is a folder, mtime in ns, version as four numbers).
    pybind11::tuple entry(std::uint64_t index) const;
    pybind11::bytes name(std::uint64_t index) const;
    std::uint64_t find(const std::string& name) const;
    /// Bytes of each file, 0 of folders.
    pybind11::array_t<std::uint64_t> sizes() const;
    /// A number of all names, sizes and versions: other files have another one.
    std::uint64_t fingerprint() const;

    /// A memoryview of the whole file, read-only. Into the pool, pinned until it is released with
    /// all that was made of it; a copy when the file has more than one chunk, or no slot is left.
    pybind11::object view(std::uint64_t index, std::int64_t timeout_ms) const;
    /// A copy, as bytes.
    pybind11::bytes read(std::uint64_t index, std::uint64_t offset, std::uint64_t bytes,
                         std::int64_t timeout_ms) const;

    /// What follows `head` in each of these files, one behind the other in `out`. The first of them
    /// that does not begin with `head`, or has another size; -1: all do.
    std::int64_t gather(const pybind11::array_t<std::uint64_t>& which, const pybind11::bytes& head,
                        const pybind11::buffer& out, std::int64_t timeout_ms) const;

    void announce(int sampler, std::uint64_t seed, std::uint64_t epoch, std::uint32_t rank,
                  std::uint32_t world, std::uint64_t position, bool shuffle, bool drop_last) const;

  private:
    fabricshm_data_entry entry_of(std::uint64_t index) const;
    int gather_one(std::uint64_t index, const std::string& head, void* into, std::uint64_t bytes,
                   std::int64_t timeout_ms, bool& is_same) const;
    pybind11::bytes copy(std::uint64_t index, std::uint64_t offset, std::uint64_t bytes,
                         std::int64_t timeout_ms) const;

    std::shared_ptr<DataSetHandle> handle_;
};

/// A file that is being written.
class DataWriter {
  public:
    explicit DataWriter(fabricshm_data_writer* writer) : writer_(writer) {}
    ~DataWriter() { abort(); }
    DataWriter(const DataWriter&) = delete;
    DataWriter& operator=(const DataWriter&) = delete;

    /// Anything with the buffer protocol, contiguous. How many bytes those were.
    std::uint64_t write(const pybind11::buffer& bytes, std::int64_t timeout_ms) const;
    void commit(std::int64_t timeout_ms);
    void abort();

  private:
    fabricshm_data_writer* writer_;
};

/// The process's way to the data of its host.
class Data {
  public:
    explicit Data(const std::optional<std::string>& socket);
    ~Data() { fabricshm_data_close(data_); }
    Data(const Data&) = delete;
    Data& operator=(const Data&) = delete;

    std::unique_ptr<DataSet> list(const std::string& path, bool recursive, bool is_file,
                                  std::int64_t timeout_ms) const;
    std::unique_ptr<DataWriter> create(const std::string& path, std::int64_t timeout_ms) const;
    pybind11::dict stats() const;

  private:
    fabricshm_data* data_ = nullptr;
};

void bind_data(pybind11::module_& module);

}  // namespace fabricshm::python
