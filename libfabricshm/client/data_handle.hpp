// What the opaque types of data.h are.

#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "libfabricshm/client/data_client.hpp"
#include "libfabricshm/client/data_set.hpp"
#include "libfabricshm/client/data_writer.hpp"

struct fabricshm_data {
    std::shared_ptr<fabricshm::DataClient> client;  // shared with sets and writers
};

struct fabricshm_data_set {
    explicit fabricshm_data_set(std::unique_ptr<fabricshm::DataSet> listed)
        : set(std::move(listed)) {}

    const std::unique_ptr<fabricshm::DataSet> set;
    // It was closed while views of it were held: it goes with the last of them.
    std::atomic<bool> is_closed{false};
};

struct fabricshm_data_writer {
    std::unique_ptr<fabricshm::DataWriter> writer;
};
