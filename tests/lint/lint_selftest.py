#!/usr/bin/python3
"""Feeds each lint a sample that is right and samples that are broken in one way, and sees it tell
them apart: a lint that cannot fail proves nothing."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Sample(unittest.TestCase):
    """A throw-away tree. `lint` runs one of the scripts over it."""

    script = ""

    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="fabric-lint-"))
        self.addCleanup(shutil.rmtree, self.root)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lint(self) -> tuple[int, str]:
        command = [sys.executable, str(SCRIPTS / self.script), "--root", str(self.root)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def assert_clean(self):
        code, output = self.lint()
        self.assertEqual(code, 0, output)

    def assert_found(self, words: str):
        code, output = self.lint()
        self.assertEqual(code, 1, output)
        self.assertIn(words, output)


class Layers(Sample):
    script = "check_layers.py"

    def setUp(self):
        super().setUp()
        self.write("libfabricshm/base/a.hpp", "#include <vector>\n")
        self.write("libfabricshm/os/b.hpp", '#include <sys/mman.h>\n#include "libfabricshm/base/a.hpp"\n')
        self.write("libfabricshm/include/fabricshm/fabricshm.h", "#include <stdint.h>\n")
        self.write("libfabricshm/client/c.cpp", "#include <fabricshm/fabricshm.h>\n")

    def test_a_tree_that_points_downwards_is_clean(self):
        self.assert_clean()

    def test_an_include_of_a_higher_layer_is_found(self):
        self.write("libfabricshm/base/x.hpp", '#include "libfabricshm/os/b.hpp"\n')
        self.assert_found("only lower layers may be included")

    def test_an_include_of_a_neighbour_on_the_same_layer_is_found(self):
        self.write("libfabricshm/shm/x.hpp", "\n")
        self.write("libfabricshm/machine/y.hpp", '#include "libfabricshm/shm/x.hpp"\n')
        self.assert_found("libfabricshm/machine/y.hpp:1")

    def test_the_daemon_may_not_include_the_client(self):
        self.write("libfabricshm/client/session.hpp", "\n")
        self.write("fabricd/pool/x.cpp", '#include "libfabricshm/client/session.hpp"\n')
        self.assert_found("the daemon's view includes the client's view")

    def test_a_library_outside_its_home_is_found(self):
        self.write("libfabricshm/os/x.cpp", "#include <hwloc.h>\n")
        self.assert_found("<hwloc.h> may be included in libfabricshm/machine only")

    def test_a_library_in_its_home_is_clean(self):
        self.write("libfabricshm/machine/x.cpp", "#include <hwloc.h>\n#include <numaif.h>\n")
        self.assert_clean()

    def test_an_unknown_library_is_found(self):
        self.write("libfabricshm/os/x.cpp", "#include <fmt/core.h>\n")
        self.assert_found("belongs to no library")

    def test_a_relative_include_is_found(self):
        self.write("libfabricshm/base/x.cpp", '#include "a.hpp"\n')
        self.assert_found("is not a path from the repository's root")

    def test_a_file_outside_the_table_is_found(self):
        self.write("misc/x.cpp", "\n")
        self.assert_found("not in the table of layers")

    def test_files_that_include_each_other_are_found(self):
        self.write("libfabricshm/base/x.hpp", '#include "libfabricshm/base/y.hpp"\n')
        self.write("libfabricshm/base/y.hpp", '#include "libfabricshm/base/x.hpp"\n')
        self.assert_found("files include each other")


class Types(Sample):
    script = "check_types.py"

    def setUp(self):
        super().setUp()
        self.write("libfabricshm/base/a.hpp", "namespace f {\nclass A;\nstruct B {\n};\n}  // namespace f\n")

    def test_declarations_and_members_are_clean(self):
        self.write("fabricd/pool/a.cpp", "namespace f {\nclass B;\nstruct A::B {\n    struct C {\n    };\n};\n}  // namespace f\n")
        self.assert_clean()

    def test_the_same_name_in_another_namespace_is_clean(self):
        self.write("fabricd/pool/a.hpp", "namespace g {\nstruct B {\n};\n}  // namespace g\n")
        self.assert_clean()

    def test_a_type_of_one_file_alone_is_clean(self):
        self.write("fabricd/pool/a.cpp", "namespace f {\nnamespace {\nstruct B {\n};\n}  // namespace\n}  // namespace f\n")
        self.assert_clean()

    def test_a_program_of_its_own_may_have_the_name(self):
        self.write("bench/a.cpp", "namespace f {\nstruct B {\n};\n}  // namespace f\n")
        self.assert_clean()

    def test_a_second_type_of_the_name_is_found(self):
        self.write("fabricd/pool/a.hpp", "namespace f {\nclass B final : public A {\n};\n}  // namespace f\n")
        self.assert_found("libfabricshm/base/a.hpp:3: f::B is also defined at fabricd/pool/a.hpp:2")

    def test_an_enumeration_of_the_name_is_found(self):
        self.write("kernels/a.hpp", "namespace f {\nenum class B : std::uint8_t { kOne };\n}  // namespace f\n")
        self.assert_found("f::B is also defined at kernels/a.hpp:2")

    def own(self, path, text):
        self.write(path, "namespace f {\nnamespace {\n" + text + "\n}  // namespace\n}  // namespace f\n")

    def test_a_constant_that_two_files_of_a_folder_keep_is_found(self):
        self.own("fabricd/pool/a.cpp", "constexpr int kStep = 1;")
        self.own("fabricd/pool/b.cpp", "constexpr const char* kStep = \"x\";")
        self.assert_found("fabricd/pool/b.cpp:3: kStep is also a name of fabricd/pool/a.cpp's own")

    def test_functions_of_the_same_parameters_are_found_and_overloads_are_clean(self):
        self.own("fabricd/pool/a.cpp", "int find(const A& one, int two) {\n    return 0;\n}")
        self.own("fabricd/pool/b.cpp", "int find(const A& other) {\n    return 0;\n}")
        self.assert_clean()
        self.own("fabricd/pool/c.cpp", "A* find(const A& x, int y = 1) noexcept {\n    return nullptr;\n}")
        self.assert_found("fabricd/pool/c.cpp:3: find(const A&, int) is also a name of fabricd/pool/a.cpp's own")

    def test_other_folders_and_files_that_are_compiled_alone_may_have_the_name(self):
        self.own("fabricd/pool/a.cpp", "constexpr int kStep = 1;")
        self.own("fabricd/server/a.cpp", "constexpr int kStep = 1;")
        self.own("fabricd/pool/b.cpp", "constexpr int kStep = 1;")
        self.write("fabricd/pool/CMakeLists.txt", "set_source_files_properties(b.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n")
        self.assert_clean()


class Sizes(Sample):
    script = "check_sizes.py"

    def test_short_files_are_clean(self):
        self.write("kernels/a.cpp", "int f() {\n    return 1;\n}\n")
        self.assert_clean()

    def test_a_long_file_is_found(self):
        self.write("kernels/a.cpp", "int x;\n" * 701)
        self.assert_found("kernels/a.cpp: 701 lines")

    def test_a_long_test_file_is_allowed(self):
        self.write("tests/unit/a_test.cpp", "int x;\n" * 701)
        self.assert_clean()

    def test_a_long_public_header_is_allowed(self):
        self.write("libfabricshm/include/fabricshm/a.h", "/* why */\nint x;\n" * 400)
        self.assert_clean()

    def test_a_long_function_is_found_with_its_name(self):
        body = "    x();\n" * 60
        self.write("kernels/a.cpp", "namespace k {\nstruct S {\n    S() : a_{1} {\n" + body + "    }\n};\n}\n")
        self.assert_found("kernels/a.cpp:3: S has 62 lines")

    def test_braces_in_strings_and_comments_do_not_count(self):
        body = '    f("}", \'}\');  // }\n' * 61
        self.write("kernels/a.cpp", "void g() {\n" + body + "}\n")
        self.assert_found("g has 63 lines")

    def test_a_long_table_is_no_function(self):
        self.write("kernels/a.cpp", "constexpr int kTable[] = {\n" + "    1,\n" * 80 + "};\n")
        self.assert_clean()

    def test_a_long_python_function_is_found(self):
        self.write("scripts/a.py", "def f():\n" + "    f()\n" * 61)
        self.assert_found("f has 62 lines")

    def test_a_long_shell_function_is_found(self):
        self.write("scripts/a", "#!/bin/bash\nrun_all() {\n" + "    true\n" * 61 + "}\n")
        self.assert_found("run_all has")

    def test_no_comment_is_asked_for(self):
        self.write("libfabricshm/shm/a.cpp", "int x;\n" * 600)
        self.assert_clean()

    def write_class(self, members: int, functions: int, files: int = 1, name: str = "Table") -> None:
        """A class in kernels/, whose functions are in so many files, the header included."""
        body = "".join(f"    std::map<int, int> m{i}_ = {{{{1, 2}}}};\n" for i in range(members))
        body += "".join(f"    int f{i}(int a, int b) const {{ return g(a); }}\n" for i in range(functions))
        self.write("kernels/a.hpp", f"namespace k {{\nclass {name} final : public Base {{\n  public:\n{body}}};\n}}\n")
        for i in range(files - 1):
            self.write(f"kernels/a_{i}.cpp", f"std::vector<int> {name}::h{i}() {{\n    return {{}};\n}}\n")

    def test_a_class_within_the_limits_is_clean(self):
        self.write_class(25, 35, 3)
        self.assert_clean()

    def test_a_class_with_too_many_members_is_found(self):
        self.write_class(26, 1)
        self.assert_found("kernels/a.hpp:2: Table has 26 members; the limit is 25")

    def test_a_class_with_too_many_functions_is_found(self):
        self.write_class(1, 36)
        self.assert_found("Table has 36 functions; the limit is 35")

    def test_a_class_in_too_many_files_is_found(self):
        self.write_class(1, 1, 4)
        self.assert_found("Table has 4 files; the limit is 3")

    def test_a_plain_struct_may_be_a_long_table(self):
        self.write("kernels/a.hpp", "struct T {\n" + "    int a, b;\n" * 40 + "};\n")
        self.assert_clean()

    def test_what_is_no_member_is_not_counted(self):
        others = ("    using X = int;\n    friend class B;\n    static constexpr int kX = f(1);\n    enum Kind { kA, kB };\n"
                  "    struct Inner { int a; int b; };\n    std::function<void(int)> run_ = make(1);\n")
        self.write("kernels/a.hpp", "class Table {\n    int f();\n" + "    int m_;\n" * 24 + others + "};\n")
        self.assert_clean()

    def test_an_exception_may_be_as_large_as_granted_and_no_larger(self):
        allow = "kernels/a.hpp:Table members<=30 functions<=40 files<=4 the table of all\n"
        self.write("scripts/sizes_allow.txt", "# comment\n\n" + allow)
        self.write_class(30, 40, 4)
        self.assert_clean()
        self.write_class(31, 40, 4)
        self.assert_found("Table has 31 members; scripts/sizes_allow.txt grants 30, and no exception grows")
        self.write_class(30, 40, 5)
        self.assert_found("Table has 5 files")

    def test_an_exception_for_members_grants_no_functions(self):
        self.write("scripts/sizes_allow.txt", "kernels/a.hpp:Table members<=30 the table of all\n")
        self.write_class(30, 36)
        self.assert_found("Table has 36 functions; the limit is 35")

    def test_a_file_on_the_allow_list_does_not_grow(self):
        self.write("scripts/sizes_allow.txt", "kernels/a.cpp lines<=710 one table, generated\n")
        self.write("kernels/a.cpp", "int x;\n" * 710)
        self.assert_clean()
        self.write("kernels/a.cpp", "int x;\n" * 711)
        self.assert_found("kernels/a.cpp: 711 lines; scripts/sizes_allow.txt grants 710")

    def test_the_allow_list_needs_a_reason_a_bound_and_a_file(self):
        self.write("kernels/a.cpp", "int x;\n")
        self.write("scripts/sizes_allow.txt", "kernels/a.cpp lines<=710\n")
        self.assert_found("has no reason")
        self.write("scripts/sizes_allow.txt", "kernels/a.cpp one table, generated\n")
        self.assert_found("has no bound")
        self.write("scripts/sizes_allow.txt", "kernels/b.cpp lines<=710 one table, generated\n")
        self.assert_found("there is no such file")


class Words(Sample):
    script = "check_words.py"

    def setUp(self):
        super().setUp()
        self.write_table("nobody ; no process ; 0 ; which thing")

    def write_table(self, *rows: str) -> None:
        self.write("scripts/words.txt", "# comment\n\n" + "".join(row + "\n" for row in rows))

    def test_plain_words_and_identifiers_are_clean(self):
        self.write("kernels/a.cpp", "// Held by no process.\nint nobody = is_nobody();  // why\n#include <nobody>\n")
        self.write("scripts/a.py", "nobody = 1\n")
        self.assert_clean()

    def test_a_comment_a_message_and_a_page_are_found(self):
        for name, text in (("kernels/a.cpp", "// Held by\n// nobody.\n"), ("tests/unit/a_test.cpp", '\nf("Nobody has it");\n'),
                           ("scripts/a.py", 'x = 1\nf("nobody")  # why\n'), ("scripts/run", "#!/bin/bash\n# nobody\n"),
                           ("docs/a.md", "# Title\nHeld by nobody.\n")):
            self.write(name, text)
            self.assert_found(f'{name}:2: "nobody": say no process (which thing)')
            (self.root / name).unlink()

    def test_a_longer_word_is_another_one(self):
        self.write("docs/a.md", "nobodys\n")
        self.assert_clean()

    def test_a_record_of_a_measurement_stays_as_it_was(self):
        self.write("docs/perf/2026-01-01-x.md", "nobody\n")
        self.assert_clean()

    def test_a_word_on_its_way_out_does_not_come_back(self):
        self.write_table("nobody ; no process ; 2 ; which thing")
        self.write("docs/a.md", "nobody, Nobody\n")
        self.assert_clean()
        self.write("docs/b.md", "nobody\n")
        self.assert_found('3 of "nobody", and no more than 2 are allowed')

    def test_numbers_go_down_when_asked(self):
        self.write_table("nobody|no one ; no process ; 9 ; which thing", "who ; which ; 1 ; a thing")
        self.write("docs/a.md", "nobody, no one, who, who\n")
        command = [sys.executable, str(SCRIPTS / self.script), "--root", str(self.root), "--lower"]
        subprocess.run(command, check=True)
        table = (self.root / "scripts/words.txt").read_text()
        self.assertIn("nobody|no one ; no process ; 2 ; which thing", table)
        self.assertIn("who ; which ; 1 ; a thing", table)

    def test_a_row_that_says_too_little_is_found(self):
        self.write_table("nobody ; no process ; 0")
        self.assert_found("a row reads")
        self.write_table("nobody( ; no process ; 0 ; which thing")
        self.assert_found("nobody(")
        self.write_table("# only a comment")
        self.assert_found("is missing or empty")


class Paths(Sample):
    script = "check_paths.py"

    def test_relative_and_system_paths_are_clean(self):
        self.write("a.md", "see docs/home/x, ~/work/y, /usr/bin/python3 and /dev/shm\n")
        self.assert_clean()

    def test_a_path_of_one_machine_is_found(self):
        for folder in ("work", "root", "home"):
            self.write("a.cmake", f"set(x /{folder}/me)\n")
            self.assert_found(f"names a private path: /{folder}/m")

    def test_the_folder_beside_the_tree_is_found(self):
        self.write("a.md", "see ../" + "shared/x\n")
        self.assert_found("names a private path")

    def test_a_broken_script_is_found(self):
        self.write("run.sh", "if true; then\n")
        self.assert_found("run.sh")

    def test_a_broken_python_file_is_found(self):
        self.write("a.py", "def f(:\n")
        self.assert_found("a.py:1")


class Versions(Sample):
    script = "check_versions.py"
    right = {"CMakeLists.txt": "project(fabricd VERSION 1.2.3 LANGUAGES CXX)\n",
             "docs/changelog.md": "# Changelog\n\nA line.\n\n## 1.2.3 (in the making)\n\n- A change.\n\n## 1.0.0 (2026-01-02)\n",
             "docs/man/a.1": '.TH A 1 "2026" "fabricd 1.2.3" "User Commands"\n',
             "docs/install.md": "The version, `1.2.3~git20261124.1545`, of `libfabricshm1.2`.\n",
             "docs/api.md": "find_package(fabricshm 1.2 REQUIRED)\n",
             "packaging/debian/libfabricshm1.2.install": "usr/lib/*/libfabricshm.so.*\n",
             "packaging/debian/control": "Package: libfabricshm1.2\n",
             "packaging/kubernetes/a.yaml": "image: registry.example/fabricd:1.2.3\n",
             "libfabricshm/include/a.h": '/* "1.2.3". Static storage. */\n',
             "libfabricshm/base/version.hpp": '#define FABRIC_VERSION "1.2.3"\n',
             "tests/a.cpp": 'CHECK(std::string(version()) == FABRIC_VERSION);\n'}

    def setUp(self):
        super().setUp()
        for name, text in self.right.items():
            self.write(name, text)

    def test_one_version_everywhere_is_clean(self):
        self.assert_clean()

    def test_another_version_is_found_in_each_file(self):
        for name, text in self.right.items():
            if "1.2" in text and name != "CMakeLists.txt":
                self.write(name, text.replace("1.2", "1.3"))
                self.assert_found(f"{name}:")
                self.write(name, text)
        self.assert_clean()

    def test_a_package_of_another_version_is_found(self):
        self.write("packaging/debian/libfabricshm1.1.install", "")
        self.assert_found("libfabricshm1.1.install:0: names version 1.1")

    def test_a_test_that_repeats_the_version_is_found(self):
        for text in ('CHECK(std::string(version()) == "1.2.3");\n', 'run("--version"), f"{name} 1.2.3"\n',
                     'assertRegex(text, rf"^{name} 1\\.2\\.3$")\n'):
            self.write("tests/a.cpp", text)
            self.assert_found("tests/a.cpp:1: repeats the version")

    def test_a_changelog_without_a_version_and_a_build_without_one_are_found(self):
        self.write("docs/changelog.md", "# Changelog\n\n## Soon\n")
        self.assert_found("its first heading is no version")
        self.write("CMakeLists.txt", "project(other)\n")
        self.assert_found("names no version")

    def release(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-B", str(SCRIPTS / "release"), *words, "--root", str(self.root)],
                              capture_output=True, text=True, check=False)

    def test_a_release_changes_all_of_it_and_nothing_else(self):
        self.assertEqual(self.release("1.3.0", "--date", "2026-11-28").returncode, 0)
        self.assert_clean()
        for name, text in self.right.items():
            now = (self.root / name.replace("1.2", "1.3")).read_text()
            wanted = text.replace("1.2.3", "1.3.0").replace("1.2", "1.3").replace("(in the making)", "(2026-11-28)")
            self.assertEqual(now, wanted)
        self.assertFalse((self.root / "packaging/debian/libfabricshm1.2.install").exists())

    def test_a_release_without_a_version_or_a_day_changes_nothing(self):
        for words in (("1.3",), ("1.3.0", "--date", "soon")):
            self.assertEqual(self.release(*words).returncode, 2)
        self.assert_clean()


class Format(Sample):
    script = "check_format.py"

    def setUp(self):
        super().setUp()
        if shutil.which("clang-format") is None:
            self.skipTest("clang-format is not installed")
        shutil.copy(SCRIPTS.parent / ".clang-format", self.root)

    def test_tidy_code_is_clean(self):
        self.write("kernels/a.cpp", "int f() {\n    return 1;\n}\n")
        self.assert_clean()

    def test_untidy_code_is_found(self):
        self.write("kernels/a.cpp", "int  f( ){ return 1 ; }\n")
        self.assert_found("run clang-format -i kernels/a.cpp")


class Docs(Sample):
    script = "check_docs.py"

    def setUp(self):
        super().setUp()
        sys.path.insert(0, str(SCRIPTS))
        import check_docs  # pylint: disable=import-outside-toplevel

        for page in check_docs.PAGES:
            self.write(page, "# Title\n")
        self.write_decision("0001-record-decisions.md")
        for folder, index in check_docs.INDEXES.items():
            pages = [Path(page) for page in check_docs.PAGES if str(Path(page).parent) == folder]
            self.write(index, "".join(f"[page]({page.name})\n" for page in pages))
        self.write(check_docs.ERRC_HEADER, "enum {\n    kOk = 0,\n    kBusy = 4,\n};\n")
        self.write(check_docs.ERRC_SOURCE, '{"kOk", "success"},\n{"kBusy", "held"},\n')
        self.write(check_docs.HEADER, "    FABRICSHM_EBUSY = -4,\nFABRICSHM_API int fabricshm_go(int x);\n")
        self.write("docs/errors.md", "| `kBusy` | `FABRICSHM_EBUSY` | held | it is | wait |\n")
        self.write("docs/api.md", "## fabricshm_go\n")

    def write_page(self, name, text):
        """A page below docs/ that the index leads to."""
        self.write(f"docs/{name}", text)
        index = self.root / "docs/README.md"
        index.write_text(index.read_text() + f"[page]({name})\n")

    def write_decision(self, name, title="# 1. Decisions are recorded", headings=("Question", "Decision", "Consequences")):
        self.write(f"docs/adr/{name}", f"{title}\n\nword\n" + "".join(f"\n## {heading}\n\nword\n" for heading in headings))

    def test_complete_documents_are_clean(self):
        self.assert_clean()

    def test_a_missing_page_is_found(self):
        (self.root / "docs/testing.md").unlink()
        self.assert_found("docs/testing.md: is missing")

    def test_a_page_that_no_index_leads_to_is_found(self):
        self.write("docs/lost.md", "# Lost\n")
        self.assert_found("docs/lost.md: docs/README.md does not link to it")
        self.write("docs/adr/0002-lost.md", "# Lost\n")
        self.assert_found("docs/adr/0002-lost.md: docs/adr/README.md does not link to it")

    def test_a_dead_link_is_found(self):
        self.write("docs/testing.md", "[there](nowhere.md)\n")
        self.assert_found("nowhere.md leads nowhere")

    def test_a_comment_that_names_no_page_is_found(self):
        self.write("kernels/a.hpp", "// See docs/nowhere.md.\n")
        self.assert_found("kernels/a.hpp:1: docs/nowhere.md is missing")

    def test_a_dead_anchor_is_found(self):
        self.write("docs/testing.md", "[there](api.md#no-such-thing)\n")
        self.assert_found("there is no such heading")

    def test_an_error_without_a_row_is_found(self):
        self.write("docs/errors.md", "| `kOther` | x | y | z | w |\n")
        self.assert_found("no row for kBusy")

    def test_an_error_with_another_text_is_found(self):
        self.write("docs/errors.md", "| `kBusy` | `FABRICSHM_EBUSY` | taken | it is | wait |\n")
        self.assert_found('kBusy prints "held"')

    def test_an_error_that_the_abi_lacks_is_found(self):
        self.write("libfabricshm/include/fabricshm/fabricshm.h",
                   "    FABRICSHM_EX = -9,\nFABRICSHM_API int fabricshm_go(int x);\n")
        self.assert_found("has the value -4 of kBusy")

    def test_an_undocumented_function_is_found(self):
        self.write("docs/api.md", "# Nothing\n")
        self.assert_found("does not mention fabricshm_go()")

    def test_an_undocumented_subcommand_is_found(self):
        self.write("fabricd/ctl/main.cpp", 'app.add_subcommand("drain", "x");\n')
        self.assert_found("does not mention `fabricctl drain`")

    def test_a_command_or_an_option_that_the_manual_lacks_is_found(self):
        self.write("fabricd/ctl/main.cpp", 'app.add_subcommand("drain", "x");\n')
        self.write_page("fabricctl.md", "`fabricctl drain`\n")
        self.assert_found("docs/man/fabricctl.1: does not mention drain")
        self.write("docs/man/fabricctl.1", ".B drain\n")
        self.assert_clean()
        self.write("libfabricshm/python/fabricshm/run.py", 'add("--no-daemon", action="store_true")\n')
        self.assert_found("docs/man/fabricrun.1: does not mention --no-daemon")
        self.write("docs/man/fabricrun.1", ".B \\-\\-no\\-daemon\n")
        self.assert_clean()

    def test_a_variable_that_the_table_lacks_is_found(self):
        self.write("libfabricshm/base/log.cpp", 'const char* wanted = std::getenv("FABRIC_LOG");\n')
        self.assert_found("fabricd/ctl/environment.cpp: does not have FABRIC_LOG")
        self.write("fabricd/ctl/environment.cpp", '{"FABRIC_LOG", "x"},\n')
        self.assert_found("docs/man/libfabricshm.7: does not mention FABRIC_LOG")
        self.write("docs/man/libfabricshm.7", ".B FABRIC_LOG\n")
        self.assert_clean()

    def test_an_undocumented_configuration_key_is_found(self):
        self.write("fabricd/config/config_keys.cpp", 'size_key("pool.capacity", 2 * kMiB),\n')
        self.assert_found("does not mention `pool.capacity`")
        self.write_page("configuration.md", "| `pool.capacity` | size |\n")
        self.assert_clean()

    def test_a_key_of_the_control_loop_that_the_reference_lacks_is_found(self):
        self.write("fabricd/config/control_keys.cpp", 'number_key("control.gain", 0, 10, x),\n')
        self.assert_found("docs/control_reference.md: does not mention `control.gain`")
        self.write_page("control_reference.md", "| `control.gain` | 0.05 |\n")
        self.assert_clean()

    def test_an_undocumented_metric_is_found(self):
        self.write("fabricd/server/x.cpp", 'text.family("fabricd_moves_total", kCounter, "Moves.");\n')
        self.assert_found("docs/telemetry.md: does not mention fabricd_moves_total")
        self.write_page("telemetry.md", "| `fabricd_moves_total` | | moves |\n")
        self.assert_clean()

    def test_decisions_have_one_form(self):
        decision = "0001-record-decisions.md"
        self.write_decision(decision, headings=("Question", "Considered", "Decision", "Consequences", "Later"))
        self.assert_clean()
        for headings in (("Question", "Choice", "Consequences"), ("Question", "Decision"), (),
                         ("Decision", "Question", "Consequences"), ("Question", "Decision", "Consequences", "Price")):
            self.write_decision(decision, headings=headings)
            self.assert_found("a decision has Question, Considered")
        self.write_decision(decision, title="# 2. Decisions are recorded")
        self.assert_found('begins with "# 1. "')

    def test_a_decision_with_a_wrong_name_is_found(self):
        self.write("docs/adr/decision.md", "# x\n")
        self.assert_found("a decision is named")


if __name__ == "__main__":
    unittest.main()
