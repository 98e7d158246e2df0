// Nothing: the program of it owns precompiled.hpp, since a header can be shared between programs
// only.
