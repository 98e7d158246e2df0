// What the data cache serves, as its file says: docs/data.md.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/prep/steps.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

class MadeFiles;
struct PrepSpec;

/// Whether jobs may write new files into a silo, and when a commit is answered.
enum class WritePolicy {
    kOff,      // it is read-only
    kThrough,  // when the silo has the file
    kBack,     // when the cache has it; the silo follows
};

struct SiloSpec {
    std::string at;           // where it appears: "/images"
    std::string from;         // "/mnt/images", "https://host/path/", "s3://bucket/p", "memory"
    int line = 0;             // of the file, for complaints
    std::string endpoint;     // of S3: "https://host:port"
    std::string region;       // of S3; "": us-east-1
    std::string credentials;  // of S3, a file; "": requests are not signed
    std::string index;        // of a web server; "": its usual name
    fabricshm::Duration refresh{};  // how long names and versions count; 0: by its kind
    WritePolicy write = WritePolicy::kOff;
    // Of a [[prep]], whose `from` is for people alone: what it is made of.
    std::shared_ptr<const PrepSpec> prep = nullptr;
    // From "memory": what both the silo and its writer know.
    std::shared_ptr<MadeFiles> made = nullptr;
};

/// Files of a silo, prepared.
struct PrepSpec {
    SiloSpec source;
    std::string below;  // its folder; "": all of it
    std::vector<PrepStep> steps;
    bool skips_bad = false;
    unsigned threads = 0;                   // 0: as many as there are processors
    std::uint64_t most_pixels = 1U << 26U;  // of one picture
};

/// A host that keeps copies: its address, and the pool that it has in common with others.
struct PeerSpec {
    std::string address;  // "host:port"
    std::string pool;     // "": its own
};

/// Copies of chunks on other hosts. Without members there are none.
struct PeersSpec {
    std::string listen;  // "10.0.0.1:7411"; "": this host serves no other one
    std::string self;    // its address among the members; "": listen
    std::vector<PeerSpec> members;
    unsigned copies = 2;
    fabricshm::Duration head_start = std::chrono::milliseconds(50);  // before the silo is asked
    // PEM files; all three or none. Without them listen is a loopback address.
    std::string authority;
    std::string certificate;
    std::string key;
};

struct DataSpec {
    fabricshm::Bytes memory = fabricshm::kGiB;  // of the pool, one copy for the host
    fabricshm::Bytes memory_min = 0;            // of it, also when jobs need it; 0: an eighth
    std::uint64_t files = 0;                    // that the table has lines for; 0: by the memory
    fabricshm::Duration silo_timeout =
        std::chrono::seconds(30);  // with a silo that does not answer
    std::string group;             // that may read; "": this user alone
    int group_line = 0;            // of the file
    std::vector<SiloSpec> silos;
    std::string spill;                 // a folder on a local disk; "": none
    fabricshm::Bytes spill_bytes = 0;  // of it
    int spill_line = 0;                // of the file
    std::string state;                 // a folder, of the catalogue; "": that of the spill
    int state_line = 0;                // of the file
    PeersSpec peers;
};

}  // namespace fabricd
