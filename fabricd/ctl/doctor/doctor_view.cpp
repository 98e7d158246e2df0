#include "fabricd/ctl/doctor/doctor_view.hpp"

#include <algorithm>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/table.hpp"

namespace fabricd {

namespace {

// Paths and texts of others may hold any bytes, and a terminal takes some of them for orders.
std::string printable(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
    return text;
}

std::size_t count_of(const std::vector<Diagnosis>& diagnoses, Grade grade) {
    return static_cast<std::size_t>(std::count_if(
        diagnoses.begin(), diagnoses.end(),
        [&](const Diagnosis& diagnosis) { return diagnosis.finding.grade == grade; }));
}

}  // namespace

const char* grade_word(Grade grade) {
    switch (grade) {
        case Grade::kOk:
            return "ok";
        case Grade::kNote:
            return "note";
        case Grade::kUnknown:
            return "unknown";
        case Grade::kWarning:
            return "warning";
        case Grade::kProblem:
            return "problem";
    }
    return "unknown";
}

std::string doctor_text(const std::vector<Diagnosis>& diagnoses) {
    Table table({{"CHECK"}, {"GRADE"}, {"FINDING"}});
    Table commands({{"TO MEND"}, {"COMMAND"}});
    bool any = false;
    for (const auto& [check, finding] : diagnoses) {
        table.add({check->name, grade_word(finding.grade), printable(finding.text)});
        if (finding.command.empty()) continue;
        commands.add({check->name, printable(finding.command)});
        any = true;
    }
    std::string text = table.text() + "\n";
    if (any) text += commands.text() + "\n";
    text += "problems: " + std::to_string(count_of(diagnoses, Grade::kProblem)) +
            ", warnings: " + std::to_string(count_of(diagnoses, Grade::kWarning)) +
            ", not checked: " + std::to_string(count_of(diagnoses, Grade::kUnknown)) + "\n";
    return text;
}

std::string doctor_json(const std::vector<Diagnosis>& diagnoses) {
    Json list = Json::array();
    for (const auto& [check, finding] : diagnoses) {
        list.push_back(
            {{"check", check->name},
             {"grade", grade_word(finding.grade)},
             {"finding", printable(finding.text)},
             {"command", finding.command.empty() ? Json() : Json(printable(finding.command))}});
    }
    return one_line({{"ill", is_ill(diagnoses)}, {"checks", list}});
}

}  // namespace fabricd
