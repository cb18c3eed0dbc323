def written(*a): return ""
def short(items, results): return ""
