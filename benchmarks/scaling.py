"""How do time and memory grow with N?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("scaling")
