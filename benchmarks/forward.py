"""How fast is the forward pass beside the peers?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("forward")
