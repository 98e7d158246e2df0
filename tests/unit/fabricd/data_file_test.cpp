#include "fabricd/config/data_file.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace fabricd;

namespace {

// One line each, so that the tests can say where a mistake is.
constexpr const char* kImages = "[[silo]]\nat = \"/images\"\nfrom = \"/data/images\"\n";

std::string error_message(const std::string& text) {
    DataSpec spec;
    const auto bad = parse_data_file(text, "d.toml", spec);
    CHECK(spec.silos.empty() == bad.has_value());
    return bad.value_or("");
}

}  // namespace

TEST_SUITE("fabricd.data_file") {
    TEST_CASE("a file has its silos and the memory that they share") {
        DataSpec spec;
        const std::string text = std::string("[cache]\nmemory = \"8GiB\"\n") + kImages +
                                 "[[silo]]\nat = \"/features\"\nfrom = \"file:///srv/f\"\n";
        REQUIRE_FALSE(parse_data_file(text, "d.toml", spec));
        CHECK(spec.memory == 8 * fabricshm::kGiB);
        REQUIRE(spec.silos.size() == 2);
        CHECK(spec.silos[0].at == "/images");
        CHECK(spec.silos[0].from == "/data/images");
        CHECK(spec.silos[0].line == 3);
        CHECK(spec.silos[1].from == "/srv/f");
        REQUIRE_FALSE(parse_data_file(kImages, "d.toml", spec));
        CHECK(spec.memory == fabricshm::kGiB);
        CHECK(spec.silo_timeout == std::chrono::seconds(30));
        CHECK(spec.files == 0);
        CHECK(spec.group.empty());
    }

    TEST_CASE("how many files, how long a silo may take, and which group reads") {
        DataSpec spec;
        REQUIRE_FALSE(
            parse_data_file(std::string("[service]\ngroup = \"training\"\n[cache]\nfiles = "
                                        "2000000\nsilo_timeout = \"5s\"\n") +
                                kImages + "refresh = \"10s\"\n",
                            "d.toml", spec));
        CHECK(spec.files == 2'000'000);
        CHECK(spec.silo_timeout == std::chrono::seconds(5));
        CHECK(spec.group == "training");
        CHECK(spec.silos[0].refresh == std::chrono::seconds(10));
        CHECK(error_message("[cache]\nfiles = 0\n") ==
              "d.toml:2: files takes a number of files, 1 to 4294967296");
        CHECK(error_message("[cache]\nsilo_timeout = \"5\"\n") ==
              "d.toml:2: silo_timeout takes a time as \"30s\", 100ms to 1 day");
        CHECK(error_message("[service]\ngroup = \"\"\n") ==
              "d.toml:2: group takes the name of a group");
        CHECK(error_message("service = 1\n") == "d.toml:1: service is a section: [service]");
    }

    TEST_CASE("a cache has a folder to spill to, and one for what it knows") {
        DataSpec spec;
        const std::string text = std::string(
                                     "[cache]\nspill = \"/var/cache/f\"\n"
                                     "spill_bytes = \"200GiB\"\nstate = \"/var/lib/f\"\n") +
                                 kImages;
        REQUIRE_FALSE(parse_data_file(text, "d.toml", spec));
        CHECK(spec.spill == "/var/cache/f");
        CHECK(spec.spill_bytes == 200 * fabricshm::kGiB);
        CHECK(spec.spill_line == 2);
        CHECK(spec.state == "/var/lib/f");
        REQUIRE_FALSE(
            parse_data_file(std::string("[cache]\nspill = \"\"\n") + kImages, "d.toml", spec));
        CHECK(spec.spill.empty());
        CHECK(spec.spill_bytes == 0);
    }

    TEST_CASE("web servers and buckets have keys of their own") {
        DataSpec spec;
        REQUIRE_FALSE(
            parse_data_file("[[silo]]\nat = \"/a\"\nfrom = \"s3://bucket/prefix\"\n"
                            "endpoint = \"https://s3:9000\"\nregion = \"eu-1\"\n"
                            "credentials = \"/etc/key\"\n"
                            "[[silo]]\nat = \"/b\"\nfrom = \"https://host/path/\"\n"
                            "index = \"list.txt\"\n",
                            "d.toml", spec));
        CHECK(spec.silos[0].endpoint == "https://s3:9000");
        CHECK(spec.silos[0].region == "eu-1");
        CHECK(spec.silos[0].credentials == "/etc/key");
        CHECK(spec.silos[1].from == "https://host/path/");
        CHECK(spec.silos[1].index == "list.txt");
    }

    TEST_CASE("a silo is read-only unless the file says how jobs write into it") {
        DataSpec spec;
        REQUIRE_FALSE(
            parse_data_file("[[silo]]\nat = \"/a\"\nfrom = \"/a\"\n"
                            "[[silo]]\nat = \"/b\"\nfrom = \"/b\"\nwrite = \"through\"\n"
                            "[[silo]]\nat = \"/c\"\nfrom = \"s3://c\"\nwrite = \"back\"\n"
                            "endpoint = \"http://h\"\n"
                            "[[silo]]\nat = \"/d\"\nfrom = \"http://d/\"\nwrite = \"off\"\n",
                            "d.toml", spec));
        CHECK(spec.silos[0].write == WritePolicy::kOff);
        CHECK(spec.silos[1].write == WritePolicy::kThrough);
        CHECK(spec.silos[2].write == WritePolicy::kBack);
        CHECK(spec.silos[3].write == WritePolicy::kOff);
    }

    TEST_CASE("what the cache alone keeps is written through, and nothing else") {
        DataSpec spec;
        REQUIRE_FALSE(
            parse_data_file("[[silo]]\nat = \"/a\"\nfrom = \"memory\"\n", "d.toml", spec));
        CHECK(spec.silos[0].write == WritePolicy::kThrough);
        CHECK(spec.silos[0].made != nullptr);
        for (const std::string write : {"back", "through", "off"}) {
            const auto refused = parse_data_file(
                "[[silo]]\nat = \"/a\"\nwrite = \"" + write + "\"\nfrom = \"memory\"\n", "d.toml",
                spec);
            REQUIRE(refused);
            CHECK(*refused ==
                  "d.toml:1: write: jobs write into \"memory\" in any case: leave write out");
        }
    }

    TEST_CASE("peers have addresses, pools and certificates") {
        DataSpec spec;
        REQUIRE_FALSE(parse_data_file(
            std::string(kImages) + "[peers]\nlisten = \"10.0.0.1:7411\"\nself = \"a:7411\"\n"
                                   "members = [\"a:7411\", \"b:7411 pool=rack\"]\ncopies = 3\n"
                                   "head_start = \"1.5s\"\n"
                                   "authority = \"/ca\"\ncertificate = \"/c\"\nkey = \"/k\"\n",
            "d.toml", spec));
        CHECK(spec.peers.listen == "10.0.0.1:7411");
        CHECK(spec.peers.self == "a:7411");
        REQUIRE(spec.peers.members.size() == 2);
        CHECK(spec.peers.members[0].pool.empty());
        CHECK(spec.peers.members[1].address == "b:7411");
        CHECK(spec.peers.members[1].pool == "rack");
        CHECK(spec.peers.copies == 3);
        CHECK(spec.peers.head_start == std::chrono::milliseconds(1500));
        CHECK(spec.peers.key == "/k");
        REQUIRE_FALSE(parse_data_file(std::string(kImages) +
                                          "[peers]\nlisten = \"127.0.0.1:7411\"\n"
                                          "members = [\"127.0.0.1:7411\", \"[::1]:7412\"]\n",
                                      "d.toml", spec));
        CHECK(spec.peers.self == "127.0.0.1:7411");
        CHECK(spec.peers.copies == 2);
        CHECK(spec.peers.head_start == std::chrono::milliseconds(50));
    }

    TEST_CASE("a mistake in the peers is named with its line") {
        const std::string wanted_members =
            "members takes a list of \"HOST:PORT\" or \"HOST:PORT pool=NAME\", of at most 1024 "
            "different hosts";
        const std::pair<std::string, std::string> mistakes[] = {
            {"copies = 2\n", "1: peers without members"},
            {"members = [\"a\"]\n", "2: " + wanted_members},
            {"members = [\"a:0\"]\n", "2: " + wanted_members},
            {"members = [\"a:70000\"]\n", "2: " + wanted_members},
            {"members = [\"a:1\", \"a:1\"]\n", "2: " + wanted_members},
            {"members = [\"a:1 pool=\"]\n", "2: " + wanted_members},
            {"members = [\"http://a:1\"]\n", "2: " + wanted_members},
            {"members = [\"127.0.0.1:1\"]\ncopies = 0\n", "3: copies takes a number from 1 to 16"},
            {"members = [\"127.0.0.1:1\"]\nhead_start = \"61s\"\n",
             "3: head_start takes a time as \"50ms\", 0s to 1min"},
            {"members = [\"127.0.0.1:1\"]\nhead_start = \"-1s\"\n",
             "3: head_start takes a time as \"50ms\", 0s to 1min"},
            {"members = [\"127.0.0.1:1\"]\nhead_start = 50\n",
             "3: head_start takes a time as \"50ms\", 0s to 1min"},
            {"members = [\"127.0.0.1:1\"]\nlisten = \"127.0.0.1\"\n",
             "3: listen takes a host and a port, as \"10.0.0.1:7411\""},
            {"members = [\"127.0.0.1:1\"]\nlisten = \"127.0.0.1:2\"\n",
             "1: 127.0.0.1:2 is none of the members; self is this host's address among them"},
            {"members = [\"127.0.0.1:1\"]\nkey = \"/k\"\n",
             "1: authority, certificate and key go together"},
            {"members = [\"127.0.0.1:1\"]\nkey = \"k\"\n", "3: key takes the path of a PEM file"},
            {"members = [\"10.0.0.1:1\"]\n",
             "1: addresses that other hosts reach take authority, certificate and key"}};
        for (const auto& [text, wanted] : mistakes) {
            CAPTURE(text);
            DataSpec spec;
            CHECK(parse_data_file("[peers]\n" + text + kImages, "d.toml", spec).value_or("") ==
                  "d.toml:" + wanted);
        }
    }

    TEST_CASE("a mistake is named with its line and what would be right") {
        const std::pair<std::string, const char*> mistakes[] = {
            {"", "d.toml: has no [[silo]]"},
            {"[cache]\nmemory = 8\n",
             "d.toml:2: memory takes a size as \"8GiB\", 32 MiB to 128 TiB"},
            {"[cache]\nmemory = \"1MiB\"\n",
             "d.toml:2: memory takes a size as \"8GiB\", 32 MiB to 128 TiB"},
            {"[cache]\nmemry = \"1GiB\"\n",
             "d.toml:2: unknown key \"memry\" (did you mean memory?)"},
            {"[cache]\nspill = \"cache\"\n",
             "d.toml:2: spill takes a folder of a local disk, as \"/var/cache/fabricd\", or \"\""},
            {"[cache]\nspill = \"/c\"\nspill_bytes = \"1MiB\"\n",
             "d.toml:3: spill_bytes takes a size as \"200GiB\", 64 MiB to 128 TiB"},
            {"[cache]\nmemory_min = \"1GiB\"\nmemory = \"512MiB\"\n",
             "d.toml:1: memory_min is larger than memory, which is 512 MiB"},
            {"[cache]\nspill = \"/c\"\n", "d.toml:1: spill needs spill_bytes"},
            {"[cache]\nspill = \"\"\nspill_bytes = \"1GiB\"\n",
             "d.toml:1: spill_bytes needs spill"},
            {"[cache]\nstate = \"\"\n", "d.toml:2: state takes a folder, as \"/var/lib/fabricd\""},
            {"cache = 3\n", "d.toml:1: cache is a section: [cache]"},
            {"[silos]\n", "d.toml:1: unknown section \"silos\" (did you mean silo?)"},
            {"[silo]\nat = \"/a\"\n", "d.toml:1: a silo is a section: [[silo]]"},
            {"[[silo]]\nat = \"/a\"\n", "d.toml:1: the silo has no from"},
            {"[[silo]]\nat = \"a\"\nfrom = \"/d\"\n",
             "d.toml:2: at takes a path in the namespace, as \"/images\""},
            {"[[silo]]\nat = \"/a/../b\"\nfrom = \"/d\"\n",
             "d.toml:2: at takes a path in the namespace, as \"/images\""},
            {"[[silo]]\nat = \"/a\\nb\"\nfrom = \"/d\"\n",
             "d.toml:2: at takes a path in the namespace, as \"/images\""},
            {"[[silo]]\nat = \"/\"\nfrom = \"/d\"\n",
             "d.toml:2: at takes a path in the namespace, as \"/images\""},
            {"[[silo]]\nat = \"/a\"\nfrom = \"d\"\n",
             "d.toml:3: from takes a folder (\"/data/images\"), a web server "
             "(\"https://host/path/\"), a bucket (\"s3://bucket/prefix\") or \"memory\""},
            {"[[silo]]\nat = \"/a\"\nfrom = [1]\n",
             "d.toml:3: from takes a folder (\"/data/images\"), a web server "
             "(\"https://host/path/\"), a bucket (\"s3://bucket/prefix\") or \"memory\""},
            {"[[silo]]\nat = \"/a\"\nfrom = \"s3://b/p\"\n",
             "d.toml:1: a silo from s3:// needs endpoint"},
            {"[[silo]]\nat = \"/a\"\nfrom = \"/d\"\nregion = \"eu\"\n",
             "d.toml:1: region is of silos from s3://"},
            {"[[silo]]\nat = \"/a\"\nfrom = \"s3://b\"\nendpoint = \"http://h\"\nindex = \"i\"\n",
             "d.toml:1: index is of silos from http:// or https://"},
            {"[[silo]]\nat = \"/a\"\nfrom = \"s3://b\"\nendpoint = \"h h\"\n",
             "d.toml:4: endpoint takes a text without blanks"},
            {"[[silo]]\nat = \"/a\"\nfrom = \"s3://b\"\ncredentials = \"key\"\n",
             "d.toml:4: credentials takes the path of a file, as \"/etc/fabricd/s3.key\""},
            {"[[silo]]\nat = \"/a\"\nfrom = \"/d\"\nwrite = true\n",
             "d.toml:4: write takes \"off\" (read-only), \"through\" or \"back\""},
            {"[[silo]]\nat = \"/a\"\nfrom = \"http://h/\"\nwrite = \"back\"\n",
             "d.toml:1: a web server can't be written to: write is of folders and of silos from "
             "s3://"},
            {std::string(kImages) + "[[silo]]\nat = \"/images/x\"\nfrom = \"/d\"\n",
             "d.toml:4: /images/x and /images (line 1) lie within each other"},
        };
        for (const auto& [text, wanted] : mistakes) {
            CAPTURE(text);
            CHECK(error_message(text) == wanted);
        }
        CHECK(error_message("at = [\n").rfind("d.toml:", 0) == 0);
        CHECK(error_message(std::string(kImages) + "# \xc3\xa9\n") == "");
        CHECK(error_message(std::string(kImages) + "\xc3\xa9\n") ==
              "d.toml:4: a character that is not ASCII; in quotes it is written as \\u and four "
              "digits");
        CHECK(error_message("[[silo]]\nat = \"/a\"\nfrom = \"/d/\\u00e9\"\n") == "");
        // Names that only begin alike are two.
        CHECK(error_message(std::string(kImages) +
                            "[[silo]]\nat = \"/images2\"\nfrom = \"/d\"\n") == "");
    }

    TEST_CASE("a prep is made of a silo, wherever that stands, and of its steps") {
        DataSpec spec;
        REQUIRE_FALSE(
            parse_data_file(std::string("[[prep]]\nat = \"/small\"\nof = \"/images/train\"\n"
                                        "steps = [\"decode\", \"resize 8x9\"]\n"
                                        "on_error = \"skip-and-count\"\nthreads = 3\n"
                                        "pixels = 1000\n") +
                                kImages,
                            "d.toml", spec));
        REQUIRE(spec.silos.size() == 2);
        const SiloSpec& silo = spec.silos[1];
        CHECK(silo.at == "/small");
        CHECK(silo.from == "of /images/train: decode, resize 8x9");
        CHECK(silo.line == 1);
        REQUIRE(silo.prep != nullptr);
        CHECK(silo.prep->source.from == "/data/images");
        CHECK(silo.prep->below == "train");
        CHECK(silo.prep->steps.size() == 2);
        CHECK(silo.prep->skips_bad);
        CHECK(silo.prep->threads == 3);
        CHECK(silo.prep->most_pixels == 1000);
    }

    TEST_CASE("a mistake in a prep is named with its line, in a list with that of its step") {
        const std::string begin = std::string(kImages) + "[[prep]]\nat = \"/p\"\n";
        const std::pair<std::string, const char*> mistakes[] = {
            {"of = \"/images\"\n", "d.toml:4: the prep has no steps"},
            {"of = \"/other\"\nsteps = [\"decode\"]\n",
             "d.toml:4: of is /other, which no [[silo]] has"},
            {"of = \"/images\"\nsteps = [\n\"decode\",\n\"resiz 3\"\n]\n",
             "d.toml:9: step \"resiz 3\": there is no step of that name (did you mean resize?)"},
            {"of = \"/images\"\nsteps = [\"decode\", \"resize 0\"]\n",
             "d.toml:7: step \"resize 0\": resize takes N (the shorter side) or HxW, 1 to 16384"},
            {"of = \"/images\"\nsteps = [\"decode\"]\nthreads = 65\n",
             "d.toml:8: threads takes a number, 1 to 64"},
            {"of = \"/images\"\nsteps = [\"decode\"]\npixels = 0\n",
             "d.toml:8: pixels takes a number, 1 to 1073741824"},
            {"of = \"/images\"\nsteps = [\"decode\"]\non_error = \"skip\"\n",
             "d.toml:8: on_error takes \"raise\" or \"skip-and-count\""},
            {"of = \"/images\"\nsteps = \"decode\"\n",
             "d.toml:7: steps takes a list, as [\"decode\", \"resize 256\", \"centre-crop 224\"]"},
            {"of = \"/images\"\nsteps = [\"decode\"]\n[[prep]]\nat = \"/q\"\nof = \"/p\"\n"
             "steps = [\"decode\"]\n",
             "d.toml:8: of is /p, which no [[silo]] has"},
            {"of = \"/images\"\nsteps = [\"decode\"]\n[[prep]]\nat = \"/images/q\"\n"
             "of = \"/images\"\nsteps = [\"decode\"]\n",
             "d.toml:8: /images/q and /images (line 1) lie within each other"},
        };
        for (const auto& [text, wanted] : mistakes) {
            CAPTURE(text);
            CHECK(error_message(begin + text) == wanted);
        }
    }

    TEST_CASE("what is no file is refused before it is read") {
        DataSpec spec;
        CHECK(read_data_file("/dev/zero", spec).value_or("") == "/dev/zero: is no file");
        CHECK(read_data_file("/tmp", spec).value_or("") == "/tmp: is no file");
        CHECK(read_data_file("/tmp/nothing/d.toml", spec).value_or("") ==
              "/tmp/nothing/d.toml: is not there");
    }

    TEST_CASE("any text is a spec or one line") {
        const std::string whole = std::string("[cache]\nmemory = \"8GiB\"\n") + kImages;
        std::mt19937 random(1);
        for (int turn = 0; turn < 3000; ++turn) {
            std::string text = whole;
            for (int change = 0; change < 3; ++change) {
                text[random() % text.size()] = static_cast<char>(random() % 256);
            }
            const std::string bad = error_message(text);
            CHECK(bad.find('\n') == std::string::npos);
        }
    }
}
