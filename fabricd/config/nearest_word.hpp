// What a person may have meant: the known word that is nearest to one that is not known.

#pragma once

#include <string>
#include <vector>

namespace fabricd {

/// The nearest of `known` by letters left out, added, exchanged or swapped, at most two of them and
/// less than half of the word; "" when none is that near. Of several the first.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

/// " (did you mean status?)", or "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace fabricd
