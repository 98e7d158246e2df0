#include "fabricd/service/visibility_check.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "libfabricshm/machine/visibility_proof.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricd;
using fabricshm::VisibilityProof;

namespace {

/// A machine, and a pool of two hosts on it with a proof that fits.
struct SharedPool {
    SharedPool() {
        tree.write("proc/cpuinfo", "processor : 0\nmodel name\t: Processor 9000\n");
        tree.write("etc/machine-id", "0123abcd");
        config.pool.backend = "dax";
        config.pool.dax_device = "/dev/dax0.0";
        config.pool.hosts = 2;
        config.pool.visibility = "clwb";
        config.pool.visibility_proof = folder.path() + "/proof";
        proof = {"clwb", fabricshm::machine_fingerprint(tree.files()), "/dev/dax0.0", 2, 1000,
                 true};
    }

    /// The error message, or "" when the pool may start.
    std::string outcome() {
        std::ofstream(config.pool.visibility_proof) << fabricshm::format_proof(proof);
        return check_visibility(config, tree.files()).value_or("");
    }
    bool reports(const std::string& words) { return outcome().find(words) != std::string::npos; }

    HostTree tree;
    test_support::TemporaryDirectory folder;
    Config config;
    VisibilityProof proof;
};

}  // namespace

TEST_SUITE("fabricd.visibility_check") {
    TEST_CASE("a pool of one host needs no proof") {
        CHECK_FALSE(check_visibility(Config{}, {}).has_value());
    }

    TEST_CASE("a pool of two hosts starts with a proof that fits, and not without") {
        SharedPool pool;
        CHECK(pool.outcome().empty());
        pool.config.pool.visibility_proof.clear();
        CHECK(check_visibility(pool.config, pool.tree.files())->find("pool.visibility_proof") !=
              std::string::npos);
        pool.config.pool.visibility_proof = pool.folder.path() + "/absent";
        CHECK(check_visibility(pool.config, pool.tree.files())->find("cannot read") !=
              std::string::npos);
    }

    TEST_CASE("a proof of something else is named in the refusal") {
        SharedPool pool;
        pool.proof.proven = false;
        CHECK(pool.reports("was refuted"));
        pool.proof.proven = true;
        pool.proof.profile = "nt";
        CHECK(pool.reports("its profile is nt, not clwb"));
        pool.proof.profile = "clwb";
        pool.proof.machine = "another";
        CHECK(pool.reports("its machine is another"));
        pool.proof.machine = fabricshm::machine_fingerprint(pool.tree.files());
        pool.proof.device = "/dev/dax1.0";
        CHECK(pool.reports("its device is /dev/dax1.0"));
        pool.proof.device = "/dev/dax0.0";
        pool.proof.hosts = 1;
        CHECK(pool.reports("on one host"));
    }

    TEST_CASE("of several devices each needs a proof of its own, in one file") {
        SharedPool pool;
        pool.config.pool.dax_device.clear();
        pool.config.pool.dax_devices = {"/dev/dax0.0", "/dev/dax1.0"};
        CHECK(pool.reports("its device is /dev/dax0.0, not /dev/dax1.0"));
        std::string both = fabricshm::format_proof(pool.proof);
        pool.proof.device = "/dev/dax1.0";
        both += fabricshm::format_proof(pool.proof);
        std::ofstream(pool.config.pool.visibility_proof) << both;
        CHECK_FALSE(check_visibility(pool.config, pool.tree.files()));
        CHECK_FALSE(fabricshm::parse_proofs("").ok());
        CHECK_FALSE(fabricshm::parse_proofs(both + "profile = nt\n").ok());
    }

    TEST_CASE(
        "a proof that is refuted elsewhere in the file is none, in either order, by its line") {
        SharedPool pool;
        const std::string proven = fabricshm::format_proof(pool.proof);
        pool.proof.proven = false;
        const std::string refuted = fabricshm::format_proof(pool.proof);
        const auto outcome = [&](const std::string& text) {
            std::ofstream(pool.config.pool.visibility_proof) << text;
            return check_visibility(pool.config, pool.tree.files()).value_or("");
        };
        const auto has = [](const std::string& text, const char* part) {
            return text.find(part) != std::string::npos;
        };
        CHECK(outcome(proven + proven).empty());
        // Each result is 7 lines, a comment and then its profile.
        CHECK(has(outcome(proven + refuted),
                  "/proof:9 does not prove this pool: the profile was refuted"));
        CHECK(has(outcome(refuted + proven), "the profile was refuted"));
        CHECK(
            has(outcome(proven + "verdict = refuted\n"), "/proof:8 has a key for the second time"));
        CHECK(
            has(outcome(proven + "verdict = proven\n"), "/proof:8 has a key for the second time"));
        // Of another profile, device or machine it is about something else.
        pool.proof.profile = "nt";
        CHECK(outcome(proven + fabricshm::format_proof(pool.proof)).empty());
    }

    TEST_CASE("hosts have a kernel each: the profile of one host is none for a pool of two") {
        SharedPool pool;
        pool.config.pool.visibility = "coherent";
        CHECK(pool.reports("coherent-hosts"));
        pool.config.pool.visibility = "coherent-hosts";
        pool.proof.profile = "coherent-hosts";
        CHECK(pool.outcome().empty());
    }

    TEST_CASE("only a dax pool can be shared by hosts, and a damaged proof is none") {
        SharedPool pool;
        pool.config.pool.backend = "emu";
        CHECK(pool.reports("pool.hosts"));
        pool.config.pool.backend = "dax";
        std::ofstream(pool.config.pool.visibility_proof) << "profile = clwb\n";
        CHECK(check_visibility(pool.config, pool.tree.files())->find("is no result") !=
              std::string::npos);
    }

    TEST_CASE("a proof reads back as it was written, and nothing else is taken for one") {
        const VisibilityProof proof{"nt", "a machine, id", "/dev/dax0.0", 2, 12345, true};
        const auto read = fabricshm::parse_proof(fabricshm::format_proof(proof)).value();
        CHECK(read.machine == proof.machine);
        CHECK(read.rounds == proof.rounds);
        CHECK(read.hosts == 2);
        CHECK(read.proven);
        CHECK_FALSE(fabricshm::parse_proof("").ok());
        CHECK_FALSE(fabricshm::parse_proof(fabricshm::format_proof(proof) + "more = 1\n").ok());
    }
}
