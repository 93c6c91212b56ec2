"""The vocabulary: frozen values that every stage shares. Pure; imports nothing of ours."""
