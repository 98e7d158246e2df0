#include "fabricd/data/silo/open_silo.hpp"

#include <algorithm>
#include <thread>

#include "fabricd/data/silo/folder_silo.hpp"
#include "fabricd/data/silo/folder_writer.hpp"
#include "fabricd/data/silo/memory_silo.hpp"
#include "fabricd/data/silo/prep_silo.hpp"
#include "libfabricshm/base/reason.hpp"
#ifdef FABRIC_HTTP_SILO
#include "fabricd/data/silo/http_silo.hpp"
#include "fabricd/data/silo/s3_silo.hpp"
#include "fabricd/data/silo/s3_writer.hpp"
#endif

namespace fabricd {

namespace {

template <typename Base, typename Kind>
Result<std::unique_ptr<Base>> as(Result<std::unique_ptr<Kind>> opened) {
    if (!opened.ok()) return opened.error();
    return std::unique_ptr<Base>(std::move(opened).value());
}

#ifdef FABRIC_HTTP_SILO
Result<std::unique_ptr<Silo>> open_web(const SiloSpec& spec) {
    HttpOptions options;
    options.place = spec.from;
    if (!spec.index.empty()) options.index = spec.index;
    return as<Silo>(HttpSilo::open(options));
}

S3Options bucket_of(const SiloSpec& spec) {
    S3Options options;
    options.place = spec.from;
    options.endpoint = spec.endpoint;
    if (!spec.region.empty()) options.region = spec.region;
    options.credentials = spec.credentials;
    return options;
}

Result<std::unique_ptr<Silo>> open_bucket(const SiloSpec& spec) {
    return as<Silo>(S3Silo::open(bucket_of(spec)));
}

Result<std::unique_ptr<SiloWriter>> open_bucket_writer(const SiloSpec& spec) {
    return as<SiloWriter>(S3Writer::open(bucket_of(spec)));
}
#else
Error not_built(const SiloSpec& spec) {
    return fabricshm::explain({fabricshm::Errc::kUnsupported, 0, "open silo"},
                              "%s: this build has no silos over HTTP (it was made without libcurl, "
                              "pugixml or OpenSSL)",
                              spec.from.c_str());
}

Result<std::unique_ptr<Silo>> open_web(const SiloSpec& spec) {
    return not_built(spec);
}

Result<std::unique_ptr<Silo>> open_bucket(const SiloSpec& spec) {
    return not_built(spec);
}

Result<std::unique_ptr<SiloWriter>> open_bucket_writer(const SiloSpec& spec) {
    return not_built(spec);
}
#endif

// Reads of its source go into memory of its own threads.
Result<std::unique_ptr<Silo>> open_prep(const PrepSpec& spec) {
    const unsigned processors = std::max(std::thread::hardware_concurrency(), 1U);
    PrepOptions options;
    options.source = [source = spec.source] { return open_silo(source, {}); };
    options.below = spec.below;
    options.steps = spec.steps;
    options.most_pixels = spec.most_pixels;
    options.threads =
        std::min(spec.threads == 0 ? processors : spec.threads, PrepWorkers::kThreadsMax);
    options.skips_bad = spec.skips_bad;
    return as<Silo>(PrepSilo::open(std::move(options)));
}

}  // namespace

Result<std::unique_ptr<Silo>> open_silo(const SiloSpec& spec, std::span<std::byte> memory) {
    if (spec.prep != nullptr) return open_prep(*spec.prep);
    if (spec.made != nullptr) return std::unique_ptr<Silo>(new MemorySilo(spec.made));
    if (spec.from.starts_with("/")) return as<Silo>(FolderSilo::open(spec.from, memory));
    return spec.from.starts_with("s3://") ? open_bucket(spec) : open_web(spec);
}

Result<std::unique_ptr<SiloWriter>> open_silo_writer(const SiloSpec& spec) {
    if (spec.made != nullptr) return std::unique_ptr<SiloWriter>(new MemoryWriter(spec.made));
    if (spec.from.starts_with("/")) return as<SiloWriter>(FolderWriter::open(spec.from));
    if (spec.from.starts_with("s3://")) return open_bucket_writer(spec);
    return fabricshm::explain({fabricshm::Errc::kUnsupported, 0, "open silo for writing"},
                              "%s: files of a web server are read only", spec.from.c_str());
}

}  // namespace fabricd
